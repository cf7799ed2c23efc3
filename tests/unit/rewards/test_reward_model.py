from __future__ import annotations

import random
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
)

from grpo_lightning.data.arithmetic import build_tokenizer
from grpo_lightning.errors import UserError
from grpo_lightning.rewards import RewardModel
from grpo_lightning.types import Prompt

CHAT = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{{ '=' if m['role'] == 'user' else ';' }}{{ m['content'] }}<eos>\n{% endfor %}"
)
QUESTION = "Tom has 7 apples, finds 5. How many?"
ANSWERS = ["12", "7+5=12;#### 12", "", "7+5=12;12+0=12;12-0=12;12+0=12;#### 12", "#### 13", "7"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Folders ``chat`` and ``plain`` (without a chat template): the same three-label Qwen2 with random weights."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(3)
    model = Qwen2ForSequenceClassification(config(num_labels=3))
    nn.init.normal_(model.score.weight)
    for name in ("chat", "plain"):
        tokenizer = build_tokenizer()
        tokenizer.chat_template = CHAT if name == "chat" else None
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def config(**changes) -> Qwen2Config:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    settings = {"vocab_size": 49, "intermediate_size": 64, "max_position_embeddings": 128, "pad_token_id": 0}
    return Qwen2Config(**sizes | settings | {"bos_token_id": None, "eos_token_id": 1} | changes)


def saved(model, folder: Path, *, tokenizer=None) -> str:
    model.save_pretrained(folder)
    (tokenizer or build_tokenizer()).save_pretrained(folder)
    return str(folder)


def direct(folder: Path, text: str, *, label: int = 0, **options) -> float:
    """The text alone through transformers, with no padding and no batch."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", **options)
    with torch.no_grad():
        return model(**ids).logits[0, label].item()


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


class Reads(nn.Module):
    """Logits: the sum of the token ids that it may look at, and how many those are. Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[list[list[int]], list[list[int]]]] = []

    def forward(self, input_ids, attention_mask):
        self.seen.append((input_ids.tolist(), attention_mask.tolist()))
        self.states = (self.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        total, count = (input_ids * attention_mask).sum(1), attention_mask.sum(1)
        return SimpleNamespace(logits=torch.stack([total, count], dim=1) * self.weight)


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
@pytest.mark.parametrize("label", [0, 2])
def test_chat_scores_are_those_of_the_model_on_each_text_alone(models, batch_tokens, label):
    reward = RewardModel(str(models / "chat"), label=label, batch_tokens=batch_tokens)
    scores = reward(prompts=[user(QUESTION)] * 6, completions=[answer(text) for text in ANSWERS], answer=["12"] * 6)
    texts = [f"={QUESTION}<eos>\n;{text}<eos>\n" for text in ANSWERS]
    expected = [direct(models / "chat", text, label=label, add_special_tokens=False) for text in texts]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 3) for score in scores}) == 6


@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
def test_plain_scores_are_those_of_the_joined_text(models, batch_tokens):
    reward = RewardModel(str(models / "plain"), batch_tokens=batch_tokens)
    prompts = [QUESTION] * 3 + ["Ann has 3 pens. How many?"] * 3
    scores = reward(prompts=prompts, completions=ANSWERS)
    expected = [
        direct(models / "plain", p + c, add_special_tokens=False) for p, c in zip(prompts, ANSWERS, strict=True)
    ]
    assert scores == pytest.approx(expected, abs=1e-5)


def test_a_module_and_values_by_hand(models):
    # Digits are the ids 4 to 13, "+" is 14 and "=" is 16: "1+2=3" is 5 + 14 + 6 + 16 + 7.
    total, count = (RewardModel(Reads(), tokenizer=str(models / "plain"), label=label) for label in (0, 1))
    texts = {"prompts": ["1", "1", "", "1", "9"], "completions": ["+2=3", "+2", "0", "", "999"]}
    assert total(**texts) == [48.0, 25.0, 4.0, 5.0, 52.0]
    assert count(**texts) == [5.0, 3.0, 1.0, 1.0, 4.0]


def test_padding_is_on_the_right_and_hidden(models):
    module = Reads()
    RewardModel(module, tokenizer=str(models / "plain"))(prompts=["1", "1"], completions=["", "+2"])
    assert module.seen == [([[5, 14, 6], [5, 0, 0]], [[1, 1, 1], [1, 0, 0]])]


def test_an_encoder_with_its_own_tokens(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(vocab_size=8, num_labels=1, max_position_embeddings=6, **small)
    ).eval()
    folder = saved(model, tmp_path / "bert", tokenizer=tokenizer)
    reward = RewardModel(folder, add_special_tokens=True)
    counts = {}
    texts = ["one", "two two", "three", "one two", "one one one two two three"]
    scores = reward(prompts=[""] * 5, completions=texts, log_count=counts.__setitem__)
    # Six positions: of the last text four words are left, between [CLS] and [SEP].
    expected = [direct(Path(folder), text) for text in [*texts[:4], "one two two three"]]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert counts == {"truncated": 1}
    bare = RewardModel(folder)(prompts=[""], completions=["one"])
    assert bare == pytest.approx([direct(Path(folder), "one", add_special_tokens=False)], abs=1e-5)
    assert bare[0] != pytest.approx(scores[0], abs=1e-5)


def test_prompts_and_completions_as_trl_passes_them(models):
    reward = RewardModel(str(models / "chat"))
    as_messages = reward(prompts=[user("1")], completions=[answer("2")])
    assert reward(prompts=[user("1")], completions=["2"]) == as_messages
    assert reward(prompts=["=1<eos>\n;"], completions=["2<eos>\n"]) == as_messages
    longer = [*user("1"), *answer("2"), *user("3")]
    expected = direct(models / "chat", "=1<eos>\n;2<eos>\n=3<eos>\n;4<eos>\n", add_special_tokens=False)
    assert reward(prompts=[longer], completions=[answer("4")]) == pytest.approx([expected], abs=1e-5)


def test_bfloat16_keeps_the_head_exact(models):
    texts = {"prompts": [QUESTION] * 6, "completions": ANSWERS}
    exact = RewardModel(str(models / "plain"))(**texts)
    rounded = RewardModel(str(models / "plain"), dtype="bfloat16")
    scores = rounded(**texts)
    assert scores == pytest.approx(exact, abs=0.1)
    assert scores != exact
    # bfloat16 has 8 bits: a score that it could hold would not change when it is rounded to it.
    assert any(torch.tensor(score).bfloat16().item() != score for score in scores)
    assert next(rounded._loaded.model.model.parameters()).dtype == torch.bfloat16


# --- batches and length -------------------------------------------------------------------------------------------


def test_batches_hold_no_more_tokens_than_allowed(models):
    module = Reads()
    reward = RewardModel(module, tokenizer=str(models / "plain"), batch_tokens=6)
    draws = random.Random(0)
    texts = ["".join(draws.choices("0123456789", k=draws.randint(1, 9))) for _ in range(40)]
    scores = reward(prompts=[""] * 40, completions=texts)
    assert scores == [float(sum(int(digit) + 4 for digit in text)) for text in texts]
    shapes = [(len(ids), len(ids[0])) for ids, _ in module.seen]
    assert all(rows * longest <= 6 or rows == 1 for rows, longest in shapes)
    assert [longest for _, longest in shapes] == sorted((longest for _, longest in shapes), reverse=True)
    assert max(rows for rows, _ in shapes) > 1


def test_equal_texts_are_scored_once_and_equally(models):
    module = Reads()
    reward = RewardModel(module, tokenizer=str(models / "plain"))
    assert reward(prompts=["1"] * 4, completions=["2", "3", "2", "2"]) == [11.0, 12.0, 11.0, 11.0]
    assert sum(len(ids) for ids, _ in module.seen) == 2


def test_a_long_text_loses_its_beginning_and_is_counted(models, caplog):
    module = Reads()
    reward = RewardModel(module, tokenizer=str(models / "plain"), max_length=3)
    counted = []
    texts = {"prompts": ["12", "1234", "1234", "99"], "completions": ["3", "5", "5", "4"]}
    for _ in range(2):
        scores = reward(**texts, log_count=lambda *count: counted.append(count))
        assert scores == [5.0 + 6 + 7, 7.0 + 8 + 9, 7.0 + 8 + 9, 13.0 + 13 + 8]
    assert counted == [("truncated", 2)] * 2
    assert [record.message for record in caplog.records if "lose their beginning" in record.message] == [
        "reward model Reads: 2 texts are longer than 3 tokens and lose their beginning (said once)"
    ]
    assert reward(**texts) == scores  # without log_count, as TRL calls


def test_the_limit_is_the_smaller_of_model_and_tokenizer(models):
    reward = RewardModel(str(models / "plain"))
    reward.place("cpu")
    assert reward._loaded.limit == 128  # the tokenizer says 256
    assert len(reward(prompts=["1" * 500], completions=["2"])) == 1


def test_a_text_of_no_tokens_has_no_score(models):
    reward = RewardModel(str(models / "plain"))
    assert reward(prompts=["", "1"], completions=["", ""])[0] is None
    assert reward(prompts=[], completions=[]) == []


# --- the process around it ----------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_its_time_and_then_once(models):
    RewardModel("no/such/model/anywhere")
    reward = RewardModel(str(models / "plain"))
    assert reward._loaded is None
    reward.place("cpu")
    model = reward._loaded.model
    reward.place("cpu", prompts=[Prompt(token_ids=[5], text="1")])
    reward(prompts=["1"], completions=["2"])
    assert reward._loaded.model is model


def test_the_model_is_frozen_and_the_random_state_untouched(models):
    module = Reads().train()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for reward in (RewardModel(str(models / "plain")), RewardModel(module, tokenizer=str(models / "plain"))):
        reward.place("cpu")
        with torch.autocast("cpu", torch.bfloat16):
            reward(prompts=["1"], completions=["2"])
        assert not any(p.requires_grad for p in reward._loaded.model.parameters())
    assert torch.equal(torch.get_rng_state(), before)
    assert module.states == (False, False, False)  # training, gradient, autocast
    assert torch.is_grad_enabled()


def test_placing_a_module_that_draws_leaves_the_random_state_alone(models):
    class Draws(Reads):
        def forward(self, input_ids, attention_mask):
            return SimpleNamespace(logits=torch.rand(len(input_ids), 1))

    torch.manual_seed(0)
    before = torch.get_rng_state()
    RewardModel(Draws(), tokenizer=str(models / "plain")).place("cpu", prompts=[Prompt(token_ids=[5], text="1")])
    assert torch.equal(torch.get_rng_state(), before)


def test_autocast_does_not_change_a_score(models):
    reward = RewardModel(str(models / "plain"))
    plain = reward(prompts=[QUESTION], completions=["12"])
    with torch.autocast("cpu", torch.bfloat16):
        assert reward(prompts=[QUESTION], completions=["12"]) == plain


def test_it_works_from_another_thread(models):
    reward = RewardModel(str(models / "plain"))
    expected = reward(prompts=[QUESTION] * 6, completions=ANSWERS)
    found = []
    thread = threading.Thread(target=lambda: found.extend(reward(prompts=[QUESTION] * 6, completions=ANSWERS)))
    thread.start()
    thread.join()
    assert found == expected


def test_its_name_in_logs():
    assert RewardModel("owner/Reward-0.6B").__name__ == "Reward-0.6B"
    assert RewardModel("runs/first/").__name__ == "first"
    assert RewardModel("owner/model", name="taste").__name__ == "taste"
    assert RewardModel(Reads(), tokenizer="owner/model").__name__ == "Reads"
    assert RewardModel.inline


# --- padding tokens -----------------------------------------------------------------------------------------------


def without_padding():
    tokenizer = build_tokenizer()
    tokenizer.pad_token = None
    return tokenizer


def test_the_models_own_padding_id_is_taken_where_its_tokenizer_has_none(tmp_path, models):
    model = AutoModelForSequenceClassification.from_pretrained(models / "plain")
    folder = saved(model, tmp_path / "model", tokenizer=without_padding())
    texts = {"prompts": ["1", "2+3"], "completions": ["1", "2"]}
    assert RewardModel(folder)(**texts) == RewardModel(str(models / "plain"))(**texts)


def test_a_missing_padding_token_is_asked_for(tmp_path):
    torch.manual_seed(0)
    model = Qwen2ForSequenceClassification(config(num_labels=1, pad_token_id=None)).eval()
    folder = saved(model, tmp_path / "model", tokenizer=without_padding())
    with pytest.raises(UserError, match=r"no padding token.*name one by pad_token.*'<eos>'"):
        RewardModel(folder).place("cpu")
    with pytest.raises(UserError, match="pad_token 'nothing' is not in its tokenizer's vocabulary"):
        RewardModel(folder, pad_token="nothing").place("cpu")
    scores = RewardModel(folder, pad_token="<pad>")(prompts=["", ""], completions=["1<eos>", "1+2"])
    alone = [direct(Path(folder), text, add_special_tokens=False) for text in ("1<eos>", "1+2")]
    assert scores == pytest.approx(alone, abs=1e-5)
    # As TRL does it: the head reads the token before the end of the sequence.
    as_trl = RewardModel(folder, pad_token="<eos>")(prompts=["", ""], completions=["1<eos>", "1+2"])
    assert as_trl == pytest.approx([direct(Path(folder), "1", add_special_tokens=False), alone[1]], abs=1e-5)


# --- mistakes -----------------------------------------------------------------------------------------------------


def mistake(reward: RewardModel, *prompts: Prompt) -> str:
    with pytest.raises(UserError) as caught:
        reward.place("cpu", prompts=prompts)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_model_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "there is no folder ./nothing" in mistake(RewardModel("./nothing"))
    assert "owner/nothing: its configuration cannot be loaded" in mistake(RewardModel("owner/nothing"))
    assert "its configuration cannot be loaded" in mistake(RewardModel(str(tmp_path)))


def test_a_model_that_is_no_trained_classifier(tmp_path):
    generative = saved(Qwen2ForCausalLM(config()), tmp_path / "generative")
    message = mistake(RewardModel(generative))
    assert "Qwen2ForCausalLM lacks the weights score.weight, so its scores would be random" in message
    steps = saved(Qwen2ForTokenClassification(config(num_labels=1)), tmp_path / "steps")
    assert "Qwen2ForTokenClassification scores every token" in mistake(RewardModel(steps))


def test_settings_that_do_not_fit_the_model(models):
    folder = str(models / "plain")
    assert "label 3, but it has 3, counted from 0" in mistake(RewardModel(folder, label=3))
    assert "max_length 129 is beyond the 128 tokens" in mistake(RewardModel(folder, max_length=129))
    assert "there is no folder ./none" in mistake(RewardModel(folder, tokenizer="./none"))


@pytest.mark.parametrize("option", ["batch_tokens", "max_length"])
def test_settings_that_mean_nothing(option):
    with pytest.raises(UserError, match=f"reward model m: {option} 0 must be at least 1"):
        RewardModel("m", **{option: 0})
    with pytest.raises(UserError, match="label -1 must be at least 0"):
        RewardModel("m", label=-1)
    with pytest.raises(UserError, match="reward model Reads: a module brings no tokenizer"):
        RewardModel(Reads())


def test_a_chat_template_that_is_missing_or_refuses(models):
    chat = Prompt(token_ids=[5], text="=1", messages=user("1"))
    assert "no chat template" in mistake(RewardModel(str(models / "plain")), chat)
    system = Prompt(token_ids=[5], text="", messages=[{"role": "system", "content": "1"}, *user("1")])
    message = mistake(RewardModel(str(models / "chat")), system)
    assert "its chat template refuses a prompt: no system role here" in message
    RewardModel(str(models / "chat")).place("cpu", prompts=[chat, system])  # the first is tried


def test_another_models_tokenizer(tmp_path, models):
    torch.manual_seed(0)
    small = saved(Qwen2ForSequenceClassification(config(vocab_size=20, num_labels=1)), tmp_path / "small")
    prompt = Prompt(token_ids=[5], text="Tom has 7")
    assert "gave token id 45, but it has 20 embeddings" in mistake(RewardModel(small), prompt)
    RewardModel(small)(prompts=["1"], completions=["+2"])  # tokens that it has


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (torch.zeros(1, 1), "returned a Tensor without logits"),
        (SimpleNamespace(logits=torch.zeros(1)), r"returned logits \[1\] for 1 texts"),
        (SimpleNamespace(logits=torch.zeros(1, 3, 1)), r"returned logits \[1, 3, 1\]"),
        (SimpleNamespace(logits=torch.zeros(2, 1)), r"returned logits \[2, 1\]"),
        (SimpleNamespace(logits=torch.zeros(1, 0)), r"at least 1 labels"),
    ],
)
def test_a_module_that_returns_something_else(models, returned, found):
    class Scorer(nn.Module):
        def forward(self, input_ids, attention_mask):
            return returned

    with pytest.raises(UserError, match=found):
        RewardModel(Scorer(), tokenizer=str(models / "plain"))(prompts=["1"], completions=["2"])
