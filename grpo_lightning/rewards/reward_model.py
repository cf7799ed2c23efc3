"""Learned rewards: a sequence-classification model that scores a prompt with its completion."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_lightning.errors import UserError, in_one_line
from grpo_lightning.rewards.classifier import (
    load_classifier,
    load_tokenizer,
    longest_text,
    set_padding,
    vocabulary_size,
)
from grpo_lightning.rewards.completions import completion_text

if TYPE_CHECKING:  # imported when a model is loaded: processes that only run other rewards need no torch
    import torch
    from transformers import PreTrainedTokenizerBase

    from grpo_lightning.types import Prompt

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Loaded:
    """A model in its place."""

    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerBase
    limit: int | None
    """Longest text, in tokens; None if nothing says."""
    vocabulary: int | None
    """Rows of its embeddings; None if it does not say."""
    device: torch.device


class RewardModel:
    """The score of a sequence-classification model, as TRL takes it: ``logits[:, 0]`` of prompt and completion.

    Chat prompts: the prompt's messages and the completion as the assistant's, rendered by the model's own chat
    template. Plain-text prompts: the two texts joined. Both are encoded by the model's own tokenizer without further
    special tokens and padded on the right; the heads of decoders read the last token that is not padding.

    Equal texts are scored once. Otherwise a rounding difference between two batches would set equal completions of a
    group apart, and dividing by the group's standard deviation would blow it up. A text longer than the model holds
    loses its beginning, the oldest part of the prompt, since heads read the end. Such completions are counted as
    ``rewards/<name>/truncated``.

    Every rank holds a whole copy on its device. It is no part of the trained module, so neither optimizer, checkpoint,
    export nor sharding know of it. Nothing is loaded before ``place`` or the first call, and torch's random state stays
    as it was.

    Args:
        model: Hugging Face id or folder; or a module that is called with ``input_ids`` and ``attention_mask``, both
            ``[B, S]``, and returns an object with ``logits``, ``[B, labels]``.
        tokenizer: id or folder; null takes the model's own. A module needs one.
        name: in logs, ``rewards/<name>/mean``; null takes the last part of the id or folder, or the module's class.
        label: which logit is the score.
        batch_tokens: most padded tokens in one forward; bounds the memory, changes no score.
        max_length: longest text, in tokens; null takes what model and tokenizer state.
        add_special_tokens: have the tokenizer add its own around the text, such as an encoder's ``[CLS]``.
        pad_token: for a tokenizer that has none. Decoders' scores depend on it, so nothing is assumed.
        dtype: of the weights; null keeps that of the file. In bfloat16 the score head still works in float32.
        attn_implementation: ``sdpa``, ``eager``, ``flash_attention_2``, ...; null takes transformers' choice, but
            ``eager`` for a model that caps its attention logits, which ``sdpa`` would leave out.
        trust_remote_code: run model code that comes with the weights.

    Raises:
        UserError: for settings that mean nothing. Loading raises it for a model that is not there or is no trained
            classifier, and calling it for a prompt that the chat template refuses.
    """

    inline = True

    def __init__(
        self,
        model: str | torch.nn.Module,
        *,
        tokenizer: str | None = None,
        name: str | None = None,
        label: int = 0,
        batch_tokens: int = 16384,
        max_length: int | None = None,
        add_special_tokens: bool = False,
        pad_token: str | None = None,
        dtype: Literal["float32", "bfloat16"] | None = "float32",
        attn_implementation: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        path = model if isinstance(model, str) else None
        self.__name__ = name or (type(model).__name__ if path is None else Path(path).name or path)
        self._where = f"reward model {path or self.__name__}"
        for option, value, least in (
            ("label", label, 0),
            ("batch_tokens", batch_tokens, 1),
            ("max_length", max_length, 1),
        ):
            if value is not None and value < least:
                raise UserError(f"{self._where}: {option} {value} must be at least {least}")
        found = tokenizer or path
        if not found:
            raise UserError(f"{self._where}: a module brings no tokenizer; name an id or folder by tokenizer")
        self.model, self.tokenizer = model, found
        self.label, self.batch_tokens, self.max_length = label, batch_tokens, max_length
        self.add_special_tokens, self.pad_token = add_special_tokens, pad_token
        self.dtype, self.attn_implementation = dtype, attn_implementation
        self.trust_remote_code = trust_remote_code
        self._loaded: _Loaded | None = None
        self._warned = False

    # --- loading ---------------------------------------------------------------------------------------------------

    def place(self, device: torch.device | str, *, prompts: Sequence[Prompt] = ()) -> None:
        """Load the model onto ``device``, so that what is wrong with it is found before a long run.

        Args:
            device: of this rank.
            prompts: what will be scored; the first is, with an empty answer, to see that it can be.
        """
        import torch

        device = torch.device(device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            if self._loaded is None:
                self._loaded = self._load(device)
            elif self._loaded.device != device:
                self._loaded.model.to(device)
                self._loaded.device = device
            for prompt in prompts[:1]:
                self(prompts=[prompt.text if prompt.messages is None else prompt.messages], completions=[""])

    def _load(self, device: torch.device) -> _Loaded:
        import torch

        if isinstance(self.model, str):
            model = load_classifier(
                self.model,
                where=self._where,
                label=self.label,
                dtype=self.dtype,
                attn_implementation=self.attn_implementation,
                device=device,
                trust_remote_code=self.trust_remote_code,
            )
        else:
            model = self.model.to(dtype=None if self.dtype is None else getattr(torch, self.dtype))
        model = model.to(device).eval().requires_grad_(False)
        tokenizer = load_tokenizer(self.tokenizer, where=self._where, trust_remote_code=self.trust_remote_code)
        set_padding(model, tokenizer, pad_token=self.pad_token, where=self._where)
        limit = longest_text(model, tokenizer, max_length=self.max_length, where=self._where)
        log.info(
            "reward model %s: %.3g million weights on %s, texts of up to %s tokens",
            self.__name__, sum(p.numel() for p in model.parameters()) / 1e6, device, limit or "any number of",
        )  # fmt: skip
        return _Loaded(model=model, tokenizer=tokenizer, limit=limit, vocabulary=vocabulary_size(model), device=device)

    # --- scoring ---------------------------------------------------------------------------------------------------

    def __call__(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_count: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """One score per completion; None only where prompt and completion together encode to no token."""
        if self._loaded is None:
            import torch

            # Lightning has made this rank's GPU the current one.
            self.place(torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu")
        loaded = self._loaded
        assert loaded is not None
        texts = [self._text(loaded.tokenizer, p, c) for p, c in zip(prompts, completions, strict=True)]
        distinct = list(dict.fromkeys(texts))
        encoded, cut = self._encode(loaded, distinct)
        scores = dict(zip(distinct, self._score(loaded, encoded), strict=True))
        self._report_cut(sum(text in cut for text in texts), loaded, log_count)
        return [scores[text] for text in texts]

    def _text(self, tokenizer: PreTrainedTokenizerBase, prompt: Any, completion: Any) -> str:
        """Prompt and completion as the model reads them."""
        if isinstance(prompt, str):
            return prompt + completion_text(completion)
        if not tokenizer.chat_template:
            raise UserError(
                f"{self._where}: the prompts are chat messages, but its tokenizer has no chat template; name one that "
                "has by tokenizer, or ask in plain text"
            )
        answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        try:
            return str(tokenizer.apply_chat_template([*prompt, *answer], tokenize=False))
        except Exception as error:  # templates raise what they like
            raise UserError(f"{self._where}: its chat template refuses a prompt: {in_one_line(error)}") from error

    def _encode(self, loaded: _Loaded, texts: list[str]) -> tuple[list[list[int]], set[str]]:
        """Token ids of each text, and the texts that had to be cut."""
        if not texts:
            return [], set()
        options: dict[str, Any] = {"add_special_tokens": self.add_special_tokens, "verbose": False}
        encoded = loaded.tokenizer(texts, **options)["input_ids"]
        cut = {text for text, ids in zip(texts, encoded, strict=True) if loaded.limit and len(ids) > loaded.limit}
        if cut:
            options |= {"truncation": True, "max_length": loaded.limit}
            encoded = [
                loaded.tokenizer(text, **options)["input_ids"] if text in cut else ids
                for text, ids in zip(texts, encoded, strict=True)
            ]
        return encoded, cut

    def _score(self, loaded: _Loaded, encoded: list[list[int]]) -> list[float | None]:
        import torch

        scores: list[float | None] = [None] * len(encoded)
        batches = list(_batches([len(ids) for ids in encoded], tokens=self.batch_tokens))
        # Both are the calling thread's alone.
        with torch.no_grad(), torch.autocast(loaded.device.type, enabled=False):
            found = [self._score_batch(loaded, [encoded[row] for row in batch]) for batch in batches]
        for batch, values in zip(batches, found, strict=True):
            for row, value in zip(batch, values.tolist(), strict=True):
                scores[row] = value
        return scores

    def _score_batch(self, loaded: _Loaded, encoded: list[list[int]]) -> torch.Tensor:
        """Scores of texts that fit in one forward, float32, ``[B]``."""
        import torch

        shape = len(encoded), max(map(len, encoded))
        input_ids = torch.full(shape, int(loaded.tokenizer.pad_token_id))
        attention_mask = torch.zeros(shape, dtype=torch.long)
        for row, ids in enumerate(encoded):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            attention_mask[row, : len(ids)] = 1
        if loaded.vocabulary is not None and (highest := int(input_ids.max())) >= loaded.vocabulary:
            raise UserError(
                f"{self._where}: its tokenizer {self.tokenizer} gave token id {highest}, but it has "
                f"{loaded.vocabulary} embeddings; name the tokenizer that it was trained with"
            )
        output = loaded.model(input_ids=input_ids.to(loaded.device), attention_mask=attention_mask.to(loaded.device))
        logits = getattr(output, "logits", None)
        if logits is None or logits.dim() != 2 or len(logits) != len(encoded) or logits.shape[1] <= self.label:
            found = f"a {type(output).__name__} without logits" if logits is None else f"logits {list(logits.shape)}"
            raise UserError(
                f"{self._where}: returned {found} for {len(encoded)} texts; its forward must return an object with "
                f"logits [texts, labels], of at least {self.label + 1} labels"
            )
        return logits[:, self.label].float()

    def _report_cut(self, count: int, loaded: _Loaded, log_count: Callable[[str, float], None] | None) -> None:
        if log_count is not None:
            log_count("truncated", count)
        if count and not self._warned:
            self._warned = True
            log.warning(
                "reward model %s: %d texts are longer than %d tokens and lose their beginning (said once)",
                self.__name__, count, loaded.limit,
            )  # fmt: skip


def _batches(lengths: list[int], *, tokens: int) -> Iterator[list[int]]:
    """Numbers of the rows of each batch: longest first, so that what does not fit in memory shows at once."""
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row])
    while order:
        size = max(tokens // lengths[order[0]], 1)
        yield order[:size]
        order = order[size:]
