"""Tokenizers built on the spot, so that no test needs a download."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def letters(*, bos: bool = False, eos_added: bool = False, chat: str | None = None) -> PreTrainedTokenizerFast:
    """One token per character (and per special token); ``bos`` and ``eos_added`` are put round an encoded text."""
    pieces = ["<pad>", "<eos>", "<s>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    pieces += [chr(code) for code in range(32, 127)] + ["\n"]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    if bos or eos_added:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=("<s> " if bos else "") + "$A" + (" <eos>" if eos_added else ""),
            special_tokens=[("<s>", 2), ("<eos>", 1)],
        )
    built = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<s>" if bos else None,
        unk_token="<unk>",
        extra_special_tokens=pieces[4:8],
    )
    built.chat_template = chat
    return built
