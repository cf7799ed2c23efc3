"""Which prompts a rollout asks, where it is not a shuffled epoch; named by ``--data.curriculum``."""

from grpo_lightning.data.curriculum.base import Curriculum, Measurement, Ordered
from grpo_lightning.data.curriculum.by_column import ByColumn
from grpo_lightning.data.curriculum.by_pass_rate import ByPassRate

__all__ = ["ByColumn", "ByPassRate", "Curriculum", "Measurement", "Ordered"]
