"""What a run writes at once."""

from __future__ import annotations

from grpo_lightning.callbacks.disk import Written


def test_two_checkpoints_or_one_and_the_export() -> None:
    assert Written(checkpoint=12.0, export=4.0).at_once(resumed=False) == 24.0
    assert Written(checkpoint=12.0, export=4.0).at_once(resumed=True) == 12.0, "one is there"
    assert Written(checkpoint=2.0, export=40.0).at_once(resumed=False) == 42.0, "an adapter's, and the merged model"
    assert Written(checkpoint=0.0, export=4.0).at_once(resumed=False) == 4.0
