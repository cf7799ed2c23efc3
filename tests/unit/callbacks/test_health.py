"""What looks wrong is told once, with its figure; what looks well is not; a resumed run does not repeat it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from grpo_lightning import ranks
from grpo_lightning.callbacks.health import HealthCallback
from grpo_lightning.errors import UserError
from grpo_lightning.module import GRPOModule

LENGTH, CUT, GAP = "completions/mean_length", "completions/clipped_ratio", "sampling/logp_difference/mean"
SOME = torch.tensor([[float("nan"), 0.5]])
"""A reward that applied to some completions."""
WELL = {"reward": 0.5, "entropy": 0.3, "kl": 0.05, "grad_norm": 0.4, LENGTH: 100.0, CUT: 0.05, GAP: 0.002}


def trainer(**figures: Any) -> Any:
    return SimpleNamespace(default_root_dir="runs/some", global_step=7, sanity_checking=False, callback_metrics=figures)


def rollout(health: HealthCallback, *steps: dict[str, float], **changes: Any) -> None:
    """One rollout with these optimizer steps; ``changes`` of what it brought."""
    made = {
        "metrics": {CUT: 0.25, "rewards/right/mean": 0.5, "rewards/right/std": 0.1},
        "reward_terms": {"right": SOME},
        "advantages": torch.tensor([[0.0, 0.0], [-1.0, 1.0]]),
        "windows": [SimpleNamespace(tokens=0.0), SimpleNamespace(tokens=9.0)],
        "truncated": False,
    } | changes
    health.on_train_batch_start()
    for figures in steps:
        health.on_step_figures(trainer(), cast(Any, None), dict(figures))
    batch = SimpleNamespace(rollout=SimpleNamespace(**made))
    health.on_train_batch_end(trainer(), cast(Any, None), None, cast(Any, batch), 0)


def see(health: HealthCallback, rollouts: int, **figures: float) -> None:
    """Rollouts of one optimizer step that differ from a healthy one in these figures."""
    short = {"length": LENGTH, "cut": CUT, "gap": GAP}
    for _ in range(rollouts):
        rollout(health, WELL | {short.get(name, name): value for name, value in figures.items()})


# --- one message each -----------------------------------------------------------------------------------------------

CASES = {
    "entropy": ({"entropy": 0.3}, {"entropy": 0.004}, "entropy has collapsed: 0.004 nats a token over the last 4 roll"),
    "length": (
        {"length": 100.0, "reward": 0.5},
        {"length": 201.0, "reward": 0.5},
        "201 tokens over the last 4 rollouts, 100 at the start (bound: 2 times), while the reward went from 0.5 to 0.5",
    ),
    "truncated": ({"cut": 0.1}, {"cut": 0.26}, "cut 26% of the completions of the last 4 rollouts (bound 25%)"),
    "mismatch": ({"gap": 0.01}, {"gap": 0.031}, "differ by 0.031 nats a token over the last 4 rollouts, 0.01 at"),
    "kl": ({"kl": 0.1}, {"kl": 0.51}, "KL 0.51 nats a token over the last 4 rollouts, 0.1 at the start (bound 0.5)"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_told_once_when_a_whole_window_shows_it(case: str, caplog: pytest.LogCaptureFixture) -> None:
    before, after, told = CASES[case]
    health = HealthCallback(window=4)
    see(health, 6, **before)
    see(health, 3, **after)
    assert caplog.messages == []
    see(health, 1, **after)
    assert told in caplog.text
    assert "Try" in caplog.text
    see(health, 3, **before)
    see(health, 5, **after)
    assert len(caplog.messages) == 1


def test_less_than_a_window_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(window=4)
    see(health, 3, entropy=0.001)
    assert caplog.messages == []
    see(health, 1, entropy=0.001)
    assert "0.001 nats a token over the last 4 rollouts" in caplog.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"entropy": 0.3}, {"entropy": 0.011}),
        ({"length": 100.0}, {"length": 199.0}),
        ({"length": 10.0, "reward": 0.2}, {"length": 31.0, "reward": 0.9}),  # longer answers that earn more
        ({"cut": 0.1}, {"cut": 0.24}),
        ({"gap": 0.01}, {"gap": 0.029}),
        ({"gap": 1e-7}, {"gap": 1e-3}),  # rounding, however much it has grown
        ({"kl": 0.0}, {"kl": 0.49}),
        ({"grad_norm": 0.4}, {"grad_norm": 3.9}),
    ],
)
def test_what_is_within_bounds_is_not_told(
    before: dict[str, float], after: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    health = HealthCallback(window=4)
    see(health, 6, **before)
    see(health, 6, **after)
    assert caplog.messages == []


def test_one_rollout_is_enough_for_a_spike(caplog: pytest.LogCaptureFixture) -> None:
    """Against the median of the window before; steps without a signal have no norm to compare with."""
    health = HealthCallback(window=4)
    for norm in (1.0, 0.0, 3.0, 2.0):
        see(health, 1, grad_norm=norm)
    see(health, 1, grad_norm=19.9)
    assert caplog.messages == []
    see(health, 1, grad_norm=100.0)  # 0, 3, 2 and 19.9 came before it
    assert "the gradient norm jumped to 100, from a median of 3 over the 4 rollouts before" in caplog.text


def test_of_a_rollout_s_steps_the_largest_norm_counts_and_else_the_mean(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(window=2)
    for _ in range(2):
        rollout(health, WELL | {"kl": 0.2}, WELL | {"kl": 0.9, "grad_norm": float("nan")})
    assert "KL 0.55 nats" in caplog.text
    rollout(health, WELL | {"grad_norm": 9.0, "kl": 0.0}, WELL)
    assert "jumped to 9, from a median of 0.4" in caplog.text


def test_cutting_the_distribution_differs_by_design(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(window=2)
    for gap in (0.01, 0.01, 0.5, 0.5):
        rollout(health, WELL | {GAP: gap}, truncated=True)
    assert caplog.messages == []


def test_a_figure_that_is_not_there_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(window=2)
    for _ in range(5):
        rollout(health)
    assert caplog.messages == []


def test_the_loss_of_the_first_step_is_explained_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    module = GRPOModule.__new__(GRPOModule)
    health = HealthCallback()
    for step in (1, 2):
        at = trainer()
        at.global_step = step
        health.on_train_batch_start()
        health.on_step_figures(at, module, {"loss": float("nan")})  # has a message of its own
        health.on_step_figures(at, module, {"loss": 0.0})
        health.on_step_figures(at, object(), {"loss": 0.0})  # a critic's loss says something
        health.on_step_figures(at, module, {})  # no completion was trained on
    (message,) = caplog.messages
    assert message.startswith("The first step's loss is 0. A loss near 0, above or below, is normal")


# --- rewards --------------------------------------------------------------------------------------------------------


def paid(
    health: HealthCallback,
    times: int,
    *,
    right: float,
    std: float = 0.0,
    form: float = 0.5,
    known: torch.Tensor = torch.ones(2, 2),  # noqa: B008
) -> None:
    for _ in range(times):
        figures = {"right/mean": right, "right/std": std, "form/mean": form, "form/std": 0.2}
        metrics = {f"rewards/{name}": value for name, value in figures.items()} | {CUT: 0.0}
        rollout(health, metrics=metrics, reward_terms={"right": known, "form": SOME})


def test_a_reward_that_never_varied_is_named(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(constant_reward=3)
    paid(health, 2, right=0.1)
    assert caplog.messages == []
    paid(health, 1, right=0.1 + 1e-16, std=1e-17)  # rounding
    assert "after 3 rollouts these rewards have scored every completion alike: right 0.1." in caplog.text


@pytest.mark.parametrize("other", [{"right": 0.0, "std": 0.3}, {"right": 1.0}])
def test_a_reward_that_varied_once_is_not(other: dict[str, float], caplog: pytest.LogCaptureFixture) -> None:
    """Between completions of a rollout, or from one rollout to the next; a mastered layout is paid alike later on."""
    health = HealthCallback(constant_reward=4)
    paid(health, 1, right=0.0)
    paid(health, 1, **other)
    paid(health, 9, right=0.0)
    assert caplog.messages == []


def test_rollouts_in_which_a_reward_did_not_apply_do_not_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means and spreads of nothing are 0; what another rank's completions earned counts."""
    health, nothing = HealthCallback(constant_reward=3), torch.full((2, 2), float("nan"))
    paid(health, 9, right=0.0, known=nothing)
    paid(health, 2, right=0.7)
    paid(health, 9, right=0.0, known=nothing)
    assert caplog.messages == []
    monkeypatch.setattr(ranks, "all_max", lambda values: torch.ones_like(values))
    paid(health, 1, right=0.7, known=nothing)
    (message,) = caplog.messages
    assert "after 3 rollouts these rewards have scored every completion alike: right 0.7." in message


def flat(
    health: HealthCallback, *shares: float, right: float = 0.0, zero_std: float | None = None, tokens: float = 9.0
) -> None:
    """Rollouts with these shares of flat groups among 100; of totals, ``zero_std`` if they differ."""
    for share in shares:
        advantages = torch.tensor([[0.0, 0.0] if group < 100 * share else [-1.0, 1.0] for group in range(100)])
        terms = {"rewards/right/mean": right, "rewards/form/mean": 0.5, "rewards/right/std": 0.1, "rewards/form/std": 1}
        rollout(
            health,
            metrics={"frac_reward_zero_std": share if zero_std is None else zero_std, CUT: 0.25, **terms},
            reward_terms={"right": SOME, "form": SOME},
            advantages=advantages.flip(0),
            windows=[SimpleNamespace(tokens=0.0), SimpleNamespace(tokens=tokens)],
        )


def test_nothing_to_learn_is_told_after_so_many_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(nothing_to_learn=3)
    flat(health, 1.0, 1.0, 0.99, 1.0)
    flat(health, 1.0, right=1.0)
    assert caplog.messages == []
    flat(health, 1.0)
    (message,) = caplog.messages
    assert message.startswith("WARNING: nothing to learn for 3 rollouts in a row")
    assert "Mean of each reward: right 0.3333, form 0.5; share of completions cut at the length limit: 25%" in message
    assert "runs/some/samples" in message
    flat(health, *[1.0] * 10, 0.0, *[1.0] * 10)
    assert len(caplog.messages) == 1


def test_equal_totals_teach_where_advantages_differ(caplog: pytest.LogCaptureFixture) -> None:
    flat(HealthCallback(nothing_to_learn=3), *[0.99] * 5, zero_std=1.0)  # normalized one by one, or the total clipped
    assert caplog.messages == []


def test_what_another_rank_learns_counts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "all_max", lambda values: values.clamp(min=0.5))
    flat(HealthCallback(nothing_to_learn=3), *[1.0] * 5)
    assert caplog.messages == []


def test_rollouts_of_which_everything_is_masked_teach_nothing(caplog: pytest.LogCaptureFixture) -> None:
    flat(HealthCallback(nothing_to_learn=3), 0.0, 0.0, 0.0, tokens=0.0)
    assert "or --rollout.mask_truncated left all of them out" in caplog.text


# --- evaluation -----------------------------------------------------------------------------------------------------


def evaluated(health: HealthCallback, accuracy: float, *, reward: float, problems: float = 10_000) -> None:
    see(health, 2, reward=reward)
    figures = {"val/accuracy": torch.tensor(accuracy), "val/totals/problems": torch.tensor(problems)}
    health.on_validation_end(trainer(**figures), cast(Any, None))


def test_reward_that_rises_while_accuracy_falls(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(window=2)
    evaluated(health, 0.40, reward=0.3)
    evaluated(health, 0.52, reward=0.5)
    evaluated(health, 0.46, reward=0.45)  # both fall
    evaluated(health, 0.48, reward=0.7)  # within the bound
    assert caplog.messages == []
    evaluated(health, 0.46, reward=0.7)
    assert "accuracy fell from 52.0% to 46.0% while the reward rose from 0.5 to 0.7" in caplog.text
    evaluated(health, 0.30, reward=0.9)
    assert len(caplog.messages) == 1


def test_a_fall_within_the_noise_of_few_problems_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """Two standard errors of a difference on 50 problems are 20 points."""
    health = HealthCallback(window=2)
    evaluated(health, 0.5, reward=0.3, problems=50)
    evaluated(health, 0.31, reward=0.6, problems=50)
    assert caplog.messages == []
    evaluated(health, 0.29, reward=0.6, problems=50)
    assert len(caplog.messages) == 1


def test_an_evaluation_before_the_first_rollout_has_no_reward() -> None:
    health = HealthCallback()
    health.on_validation_end(trainer(**{"val/accuracy": torch.tensor(0.1)}), cast(Any, None))
    assert health.state_dict()["best"] == []


# --- settings and state -----------------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_and_does_not_repeat(caplog: pytest.LogCaptureFixture) -> None:
    def saved(health: HealthCallback) -> HealthCallback:
        again = HealthCallback(window=4, nothing_to_learn=3, constant_reward=None)
        again.load_state_dict(json.loads(json.dumps(health.state_dict())))
        return again

    health = HealthCallback(window=4, nothing_to_learn=3, constant_reward=None)
    see(health, 6)
    see(health, 3, kl=0.6)
    flat(health, 1.0, 1.0, right=1.0)
    health = saved(health)
    see(health, 1, kl=0.6)
    assert "KL 0.6 nats a token over the last 4 rollouts, 0.05 at the start" in caplog.text
    flat(health, 1.0, 1.0, right=1.0)
    health = saved(health)
    flat(health, 1.0)
    assert "right 0.6667" in caplog.text
    health = saved(health)
    see(health, 5, kl=0.6)
    flat(health, *[1.0] * 5)
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(("before", "after"), [(6, 3), (3, 5)])
def test_a_resumed_run_may_have_another_window(before: int, after: int, caplog: pytest.LogCaptureFixture) -> None:
    health = HealthCallback(window=before)
    see(health, 9, kl=0.1)
    again = HealthCallback(window=after)
    again.load_state_dict(json.loads(json.dumps(health.state_dict())))
    see(again, 2, kl=0.1)
    see(again, after, kl=0.6)
    assert f"KL 0.6 nats a token over the last {after} rollouts, 0.1 at the start" in caplog.text
    see(again, after, grad_norm=0.4)
    see(again, 1, grad_norm=40.0)
    assert "jumped to 40, from a median of 0.4" in caplog.text


def test_it_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    off = HealthCallback(enabled=False, window=1, nothing_to_learn=1)
    deaf = HealthCallback(window=1, entropy=None, nothing_to_learn=None)
    for health in (off, deaf):
        see(health, 3, entropy=0.0)
        flat(health, 1.0, 1.0)
    assert caplog.messages == []


def test_supervised_batches_have_no_rollout() -> None:
    batch = cast(Any, SimpleNamespace(rollout=None))
    HealthCallback().on_train_batch_end(trainer(), cast(Any, None), None, batch, 0)


@pytest.mark.parametrize(
    "mistake", [{"window": 0}, {"nothing_to_learn": 0}, {"kl": 0.0}, {"entropy": -1.0}, {"accuracy_drop": float("nan")}]
)
def test_bounds_that_mean_nothing_are_refused(mistake: dict[str, Any]) -> None:
    (name,) = mistake
    with pytest.raises(UserError, match=f"--health.{name} "):
        HealthCallback(**mistake)
