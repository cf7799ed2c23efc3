"""The page: tables written here, curves and samples by its own script from data that can be nothing but data.

What a model, a data set or a configuration wrote is hostile text. Three things keep it from being run or read as HTML:
Jinja escapes all that it inserts; the data for the script are JSON without ``<``, ``>`` and ``&``, which the script
writes as ``textContent`` alone; and the page's Content-Security-Policy admits the two scripts in it by their hash, no
other, and no connection anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from grpo_lightning.report import figures, reading, samples
from grpo_lightning.report.reading import Run

HERE = "grpo_lightning.report"


def render(runs: Sequence[Run]) -> str:
    """The whole page.

    Args:
        runs: with different names; at least one.
    """
    scripts = [_file("plotly", "package_data/plotly.min.js"), _file(HERE, "page.js")]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    data = {"panels": figures.panels(runs), "runs": [figures.curves(run) for run in runs]}
    return environment.from_string(_file(HERE, "page.html")).render(
        policy=content_security_policy(scripts),
        style=Markup(_file(HERE, "page.css")),
        scripts=[Markup(script) for script in scripts],
        data=json_for_html(data),
        runs=runs,
        title=", ".join(run.name for run in runs[:3]) + (" and more" if len(runs) > 3 else ""),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=_version(),
        finals=figures.final_figures(runs),
        evaluations=[(run, figures.evaluation_tables(run), figures.other_evaluations(run)) for run in runs],
        differences=figures.differing_settings(runs),
        limits=_limits(runs),
    )


def json_for_html(data: Any) -> Markup:
    """JSON for a ``<script type="application/json">``: ASCII in which nothing can end the element or begin another."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # they occur inside strings only
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def content_security_policy(scripts: Sequence[str]) -> str:
    """Runs these scripts and no other; loads nothing. (Plotly styles its charts by attributes.)"""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(package: str, name: str) -> str:
    # A file's newlines are part of its hash, and a browser reads \r\n as \n.
    return files(package).joinpath(name).read_text("utf-8").replace("\r\n", "\n")


def _version() -> str:
    try:
        return version("grpo_lightning")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""


def _limits(runs: Sequence[Run]) -> list[str]:
    """What the page leaves out, in words."""
    said = [
        f"At most {reading.MOST_COMPLETIONS:,} completions in all, from at most {samples.MOST_ROLLOUTS} recorded "
        f"rollouts of a run, the first groups of each. Texts over {samples.LONGEST_TEXT:,} characters lose their "
        "middle.",
        "Time is that of the optimizer steps and their rollouts: without evaluations, checkpoints and the start.",
    ]
    for run in runs:
        if run.samples.recorded > run.samples.shown:
            number = f"{run.samples.shown:,} of {run.samples.recorded:,}"
            said.append(f"{run.name}: {number} recorded completions are shown; all are in samples/*.parquet.")
        if run.per_point > 1:
            said.append(f"{run.name}: a point of a curve is the mean of {run.per_point} optimizer steps.")
        said += [f"{run.name}: {note}." for note in run.notes[:20]]
    return said
