"""The report in headless Chromium: no script of a model's runs, the page's own does, and nothing overlaps."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from grpo_lightning.report.command import write_report
from tests.integration.browser import CHROMIUM, opened
from tests.unit.report.run_folders import CONFIG, run_folder

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]
RUN = "document.documentElement.setAttribute('data-'+'mark', '1')"
"""Leaves an attribute whose name stands nowhere in the page."""
SAMPLES = [
    f"</script><script>{RUN}</script>",
    f'</pre></div><img src=x onerror="{RUN}">',
    f'<svg onload="{RUN}"></svg><!--',
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f'<a href="javascript:{RUN}">x</a>\u2028{RUN}\u2029',
    f"{{{{ ''.__class__ }}}} \\u003cscript\\u003e{RUN}\\u003c/script\\u003e",
    f"<style>@import 'data:text/css,x'</style><base href=//x><meta http-equiv=refresh content='0;javascript:{RUN}'>",
    f"\"'`><details open ontoggle={RUN.replace(' ', '')}>\0\x1b[31m\ud83d\u202e",
]
MEASURE = """
setTimeout(() => {
  const wide = [], over = [];
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest(".scroll, pre, svg")) continue;
    if (e.getBoundingClientRect().right > innerWidth + 1) wide.push(e.outerHTML.slice(0, 99));
  }
  for (const plot of document.querySelectorAll(".plot")) {
    const all = [...plot.querySelectorAll("text")].filter((text) => text.textContent.trim());
    const boxes = all.map((text) => text.getBoundingClientRect());
    const card = plot.closest(".chart").getBoundingClientRect();
    boxes.forEach((a, i) => {
      const out = a.left < card.left || a.right > card.right + 1 || a.bottom > card.bottom + 1;
      if (out) over.push("out: " + all[i].textContent);
      boxes.forEach((b, j) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (j > i && across > 2 && down > 3) over.push(all[i].textContent + " on " + all[j].textContent);
      });
    });
  }
  const charts = document.querySelectorAll(".plot .main-svg").length;
  parent.postMessage(JSON.stringify({ width: innerWidth, wide, over, charts }), "*");
}, 1000);
"""
OPERATE = """
setTimeout(() => {
  const id = (name) => document.getElementById(name), found = {};
  const say = (name) => { found[name] = id("sample-count").textContent.replace(/;.*/, ""); };
  const set = (name, value) => { id(name).value = value; id(name).dispatchEvent(new Event("input")); };
  const titles = () => document.querySelector(".plot .xtitle").textContent;
  const choose = (name, value) => { id(name).value = value; id(name).dispatchEvent(new Event("change")); };
  found.steps = titles();
  document.querySelector("[name=clock][value=tokens]").click();
  found.tokens = titles();
  document.querySelector("[name=clock][value=hours]").click();
  found.hours = titles();
  found.curves = document.querySelector(".plot").querySelectorAll(".trace").length;
  set("smoothing", "0");
  choose("any-figure", "num_tokens");
  found.other = document.querySelector("#any-chart h4").textContent;
  say("last");
  choose("sample-rollout", "all"); say("all");
  set("sample-search", "ALPHA"); say("alpha");
  set("sample-search", ""); set("reward-low", "0.5"); say("good");
  set("reward-low", ""); choose("finish", "length"); say("cut");
  found.faded = document.querySelectorAll(".member.other").length;
  setTimeout(() => {
    found.unsmoothed = document.querySelector(".plot").querySelectorAll(".trace").length;
    parent.postMessage(JSON.stringify(found), "*");
  }, 500);
}, 500);
"""
FRAME = """<!doctype html><body style="margin:0">
<iframe src="page.html" style="border:0;width:{width}px;height:3000px"></iframe>
<script>onmessage = (event) => document.body.setAttribute("data-found", event.data)</script>
"""


def test_no_text_of_a_run_becomes_a_script(tmp_path: Path) -> None:
    hostile = SAMPLES[1]
    first = run_folder(tmp_path / "a", completions=SAMPLES, config=CONFIG + f"note: {json.dumps(hostile)}\n")
    second = run_folder(tmp_path / "<img src=x onerror=run()>", completions=SAMPLES[::-1])
    with (first / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps({"command": "fit", "step": 3, "source": hostile, "accuracy": 0.5}) + "\n")
    (first / "environment.json").write_text(json.dumps({"command": hostile, hostile: "x"}))
    table = (
        (first / "metrics.csv")
        .read_text()
        .replace("rewards/right/mean", f'"rewards/{hostile.replace(chr(34), chr(39))}/mean"')
    )
    (first / "metrics.csv").write_text(table)
    document, console = opened(write_report([first, second], tmp_path / "page.html"))
    assert not re.search(r"<html[^>]* data-mark", document)
    assert "<img" not in document
    assert "<iframe" not in document
    assert document.count("<script") == 3
    assert console == ""  # nothing was tried that the policy refused, either
    # The page's own script has run: charts, and groups with the texts in them.
    assert "main-svg" in document
    assert len(re.findall(r'class="member[ "]', document)) == 8
    assert "&lt;img src=x onerror=" in document


def test_the_attribute_would_be_there_if_a_script_ran(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><html><body><pre>{SAMPLES[1]}</pre></body></html>", "utf-8", "replace")
    assert re.search(r"<html[^>]* data-mark", opened(page)[0])
    policy = '<meta http-equiv="Content-Security-Policy" content="script-src \'none\'">'
    page.write_text(f"<!doctype html><html><head>{policy}</head><body>{SAMPLES[1]}</body></html>", "utf-8", "replace")
    assert not re.search(r"<html[^>]* data-mark", opened(page)[0])


def measured(page: Path, script: str, *, width: int) -> dict[str, Any]:
    """What a script that is put into the page tells, in a frame: no window of Chromium's is narrow as a telephone."""
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.read_text("utf-8").replace("script-src ", f"script-src &#39;sha256-{allowed}&#39; ", 1)
    page.write_text(f"{text.rpartition('</body>')[0]}<script>{script}</script></body>", "utf-8")
    frame = page.parent / "frame.html"
    frame.write_text(FRAME.format(width=width))
    document, console = opened(frame, f"--window-size={max(width, 600)},3000")
    assert console == ""
    return json.loads(html.unescape(re.search(r'data-found="(.*?)"', document)[1]))  # type: ignore[index]


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_overlaps_or_is_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    runs = [run_folder(tmp_path / name, steps=40, completions=SAMPLES) for name in ("a", "b-with-a-long-name" * 4, "c")]
    found = measured(write_report(runs, tmp_path / "page.html"), MEASURE, width=width)
    assert found == {"width": width, "wide": [], "over": [], "charts": found["charts"]}
    assert found["charts"] >= 4


def test_axes_smoothing_search_and_filters(tmp_path: Path) -> None:
    texts = ["alpha", "b", "c", "d", "e", "f", "g", "h"]
    run = run_folder(tmp_path / "run", steps=40, completions=texts)
    found = measured(write_report([run], tmp_path / "page.html"), OPERATE, width=1280)
    assert found == {
        "steps": "optimizer steps", "tokens": "tokens, prompts included", "hours": "hours of training steps",
        "curves": 2, "unsmoothed": 1, "other": "num_tokens",
        "last": "8 completions in 2 groups match", "all": "16 completions in 4 groups match",
        "alpha": "2 completions in 2 groups match", "good": "8 completions in 4 groups match",
        "cut": "8 completions in 4 groups match", "faded": 8,
    }  # fmt: skip
