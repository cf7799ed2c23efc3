"""Single wrong edits of the oracle's formulas, which the comparison must see."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from tests.unit.objectives import oracle

_source = cache(inspect.getsource)


@dataclass(frozen=True)
class Mutation:
    """In one function of the oracle, ``says`` becomes ``instead``."""

    case: str
    """Objective (``cases.UNDER_TEST``) whose comparison must see it."""
    function: str
    says: str
    instead: str
    kl_form: str = "none"
    reduction: str = "sequence_mean"

    def __str__(self) -> str:
        return f"{self.case}, {self.kl_form}, {self.function}: {self.says} -> {self.instead}"

    def applied(self) -> ModuleType:
        """The oracle so edited; everything else in it calls the edited function."""
        body = _source(getattr(oracle, self.function))
        assert body.count(self.says) == 1, f"{self.function} says {self.says!r} {body.count(self.says)} times"
        source = _source(oracle).replace(body, body.replace(self.says, self.instead))
        module = ModuleType(oracle.__name__)
        exec(compile(source, str(self), "exec"), module.__dict__)
        return module


def _of(case: str, function: str, *edits: tuple[str, str], **where: str) -> list[Mutation]:
    return [Mutation(case, function, says, instead, **where) for says, instead in edits]


RANGE = "1 - low, 1 + high"
BOUND_EDITS = [
    (RANGE, "1 - high, 1 + low"),
    (RANGE, "1 - low, 1e9"),
    (RANGE, "-1e9, 1 + high"),
    (RANGE, "1 / (1 + low), 1 + high"),
    (RANGE, "1 - low, cmath.exp(high).real"),
]
PESSIMISM_EDITS = [("-least(", "-greatest("), ("-least(", "least("), ("least(s * a", "least(a")]
GEOMETRIC_EDITS = [("/ len(row)", ""), ("/ len(row)", "/ (len(row) + 1)"), ("p - q", "q - p")]

POLICY = [
    *_of("clipped", "clipped", *BOUND_EDITS),
    *_of(
        "clipped",
        "clipped",
        ("gain = least(", "gain = greatest("),
        ("1 + high) * a)", "1 + high))"),
        ("cmath.exp(p - q)", "cmath.exp(q - p)"),
        ("cmath.exp(p - q)", "(1 + p - q)"),
        ("cmath.exp(p - q)", "held(cmath.exp(p - q))"),
        ("append(-gain)", "append(gain)"),
    ),
    *_of(
        "dual clip",
        "clipped",
        ("if delta is not None and a < 0:", "if False:"),
        ("a < 0", "a > 0"),
        ("greatest(gain", "least(gain"),
        ("delta * a", "-delta * a"),
        ("delta * a", "(1 + delta) * a"),
    ),
    *_of("gspo", "gspo", *BOUND_EDITS, *PESSIMISM_EDITS),
    *_of("gspo", "gspo", ("cmath.exp(mean_log_ratio(row))", "held(cmath.exp(mean_log_ratio(row)))")),
    *_of("gspo", "mean_log_ratio", *GEOMETRIC_EDITS),
    *_of("gspo, token gradient", "gspo_token", *BOUND_EDITS),
    *_of(
        "gspo, token gradient",
        "gspo_token",
        ("-least(", "-greatest("),
        ("-least(", "least("),
        ("s = held(", "s = ("),
        ("cmath.exp(p - held(p))", "1"),
        ("s * cmath", "cmath"),
        ("p - held(p)", "held(p) - p"),
    ),
    *_of("luspo", "gspo", *BOUND_EDITS, *PESSIMISM_EDITS),
    *_of("luspo", "mean_log_ratio", *GEOMETRIC_EDITS),
    *_of("rloo", "rloo", *BOUND_EDITS),
    *_of(
        "rloo",
        "rloo",
        ("-least(", "-greatest("),
        ("-least(", "least("),
        ("p - q for", "q - p for"),
        ("strict=True)))", "strict=True)) / len(row))"),
        ("w = cmath.exp(", "w = held("),
    ),
    *_of("cispo", "cispo", *BOUND_EDITS),
    *_of(
        "cispo",
        "cispo",
        (RANGE, "1 - low, high"),
        ("weight = held(", "weight = ("),
        ("-weight", "weight"),
        ("a * p)", "a * cmath.exp(p - q))"),
        ("a * p)", "p)"),
    ),
    *_of("cispo, no lower bound", "cispo", (RANGE, "0.5, 1 + high"), (RANGE, "1 - low, high")),
    *_of(
        "sapo",
        "sapo",
        ("4 / scale", "2 / scale"),
        ("4 / scale", "4"),
        ("if a > 0", "if a < 0"),
        ("(cmath.exp(p - q) - 1)", "cmath.exp(p - q)"),
        ("(cmath.exp(p - q) - 1)", "(p - q)"),
        ("cmath.exp(-scale", "cmath.exp(scale"),
        ("-gate * a", "gate * a"),
    ),
    *_of(
        "gmpo",
        "gmpo",
        ("if a > 0", "if a < 0"),
        ("bounded(log_ratio, -low, high)", "bounded(log_ratio, -high, low)"),
        ("bounded(log_ratio, -low, high)", "cmath.log(bounded(cmath.exp(log_ratio), 1 - low, 1 + high))"),
        ("choose(log_ratio, bounded(log_ratio, -low, high))", "log_ratio"),
        ("choose(log_ratio, bounded(log_ratio, -low, high))", "bounded(log_ratio, -low, high)"),
        ("total / len(row)", "total"),
        ("total / len(row)", "total / (len(row) + 1)"),
        ("-s * a", "s * a"),
    ),
    *_of(
        "vespo",
        "vespo",
        ("held(w", "(w"),
        ("if a >= 0", "if a < 0"),
        ("w**power", "w"),
        ("(1 - w)", "-w"),
        ("(1 - w)", "(w - 1)"),
        ("mean_log_ratio(row) * len(row)", "mean_log_ratio(row)"),
        ("append(-held(", "append(held("),
        ("* a * p", "* p"),
    ),
    *_of("reinforce", "reinforce", ("[-a * p", "[a * p"), ("[-a * p", "[-p"), ("[-a * p", "[-a * cmath.exp(p)")),
]
"""Signs, bounds, powers, denominators and stop-gradients of the policy's terms."""

KL = [
    *_of("clipped", "kl", ("value = -difference", "value = difference"), kl_form="k1"),
    *_of("clipped", "kl", ("difference**2 / 2", "difference**2"), ("difference**2", "-(difference**2)"), kl_form="k2"),
    *_of(
        "clipped",
        "kl",
        ("cmath.exp(difference)", "cmath.exp(-difference)"),
        ("- difference - 1", "+ difference - 1"),
        ("- difference - 1", "- difference"),
        kl_form="k3",
    ),
    *_of("clipped", "kl", ("if times_ratio else value", "if True else value"), kl_form="k3"),
    *(
        mutation
        for case in ("clipped", "gspo")
        for mutation in _of(
            case,
            "kl",
            ("value * ratio if", "value if"),
            ("value * ratio if", "value * held(ratio) if"),
            ("value * ratio if", "held(value) * ratio if"),
            ("value * ratio if", "value / ratio if"),
            ("value * ratio if", "value * cmath.exp(mean_log_ratio(row)) if"),
            kl_form="k3 x ratio",
        )
    ),
    *_of("clipped", "kl", ("held(ratio)", "ratio"), kl_form="k2 x ratio"),
    *_of("clipped", "kl", ("r - p", "q - p"), kl_form="k1 x ratio"),
    *_of("clipped", "loss", ("x + beta * y", "x - beta * y"), ("x + beta * y", "x + y"), kl_form="k3"),
]

REDUCTIONS = [
    *_of(
        "clipped",
        "token_mean",
        ("sum(len(row) for row in losses)", "len(losses)"),
        ("sum(len(row) for row in losses)", "(sum(len(row) for row in losses) + 1)"),
        reduction="token_mean",
    ),
    *_of(
        "clipped",
        "sequence_mean",
        ("max(len(row), 1)", "longest"),
        ("max(len(row), 1)", "1"),
        ("/ len(losses)", ""),
        reduction="sequence_mean",
    ),
    *_of(
        "clipped",
        "sequence_sum",
        ("/ len(losses)", ""),
        ("/ len(losses)", "/ sum(len(row) for row in losses)"),
        reduction="sequence_sum",
    ),
    *_of(
        "clipped",
        "constant_length",
        ("* longest", "* max(len(row) for row in losses)"),
        ("len(losses) * longest", "longest"),
        reduction="constant_length",
    ),
]

MUTATIONS = POLICY + KL + REDUCTIONS
