"""The page holds hostile text as data only. (tests/integration/test_report_in_browser.py sees it in a browser.)"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from grpo_lightning.report.page import json_for_html, render
from grpo_lightning.report.reading import read_run
from tests.unit.report.run_folders import CONFIG, run_folder

HOSTILE = "</script><img src=x onerror=alert(1)> & \u2028 \ud83d \0 <!-- {{ 7 * 7 }}"


def _page(folder: Path, name: str = "run") -> str:
    return render([read_run(folder, name=name)])


def test_json_for_html_is_the_same_json() -> None:
    text = str(json_for_html({"a<b>": [HOSTILE, 1.5, None]}))
    assert json.loads(text) == {"a<b>": [HOSTILE, 1.5, None]}
    assert not set(text) & set("<>&\u2028")
    assert text.isascii()


def test_hostile_text_is_nowhere_as_it_stands(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r", completions=[HOSTILE] * 4, config=CONFIG + f"note: {json.dumps(HOSTILE)}\n")
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps({"command": "fit", "step": 9, "source": HOSTILE, "accuracy": 0.5}) + "\n")
    (folder / "environment.json").write_text(json.dumps({"command": HOSTILE}))
    (folder / "metrics.csv").write_text('step,rewards/<img src=x onerror=alert(1)>/mean,"a,<b>"\n1,0.5,1\n')
    page = _page(folder, HOSTILE.replace("\ud83d", "?"))
    assert "<img" not in page
    assert "onerror=alert(1)" in page  # escaped, that is
    assert page.count("</script>") == page.count("<script") == 3
    assert "{{ 7 * 7 }}" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    text = data["runs"][0]["rollouts"][0]["groups"][0]["completions"][0]["text"]
    assert text == HOSTILE.replace("\ud83d", "\\ud83d")


def test_the_policy_admits_the_two_scripts_of_the_page_alone(tmp_path: Path) -> None:
    page = _page(run_folder(tmp_path / "r"))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)[1]  # type: ignore[index]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert policy.replace("&#39;", "'").startswith(
        f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}';"
    )
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    assert not re.search(
        r"""(?:src|href)=["']?(?:https?:)?//""", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    )


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r", completions=["x"] * 4_000)
    page = _page(folder)
    assert re.search(r"run: 2,0\d\d of 8,000 recorded completions are shown", page)
    assert len(page) < 6_500_000
