"""From token losses to one number: what each token counts in the loss of one optimizer step.

Every function returns weights ``[B, T]`` for a part of the optimizer step (the *window*), given the totals of the whole
window over all micro-batches and ranks. The loss is ``(values * weights).sum()``, added up over the parts: the result
cannot depend on how the window was cut. (Averaging each micro-batch by its own token count is another algorithm, one
that changes with the micro-batch size.)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Reduction = Callable[..., Tensor]
"""(mask, *, tokens, sequences, max_length) -> weights."""


def token_mean(mask: Tensor, *, tokens: float, sequences: float, max_length: int) -> Tensor:
    """Each trained token counts the same: 1 / tokens (DAPO, arXiv 2503.14476, eq. 8).

    Args:
        mask: 1 on a trained token, ``[B, T]``.
        tokens: trained tokens of the whole window.
        sequences: sequences of the whole window, those without a trained token included.
        max_length: length limit of a completion, in tokens.

    Returns:
        Weights that sum to 1 over the window, ``[B, T]``.
    """
    del sequences, max_length
    return mask / max(tokens, 1)


def sequence_mean(mask: Tensor, *, tokens: float, sequences: float, max_length: int) -> Tensor:
    """Mean over sequences of the mean over a sequence's tokens: 1 / (sequences · length) (GRPO, arXiv 2402.03300).

    Arguments as in ``token_mean``. A token of a long completion counts less than one of a short completion, which is
    the length bias that Dr.GRPO removes. The weights sum to 1 if every sequence has a trained token.
    """
    del tokens, max_length
    return mask / (mask.sum(dim=1, keepdim=True).clamp(min=1) * max(sequences, 1))


def sequence_sum(mask: Tensor, *, tokens: float, sequences: float, max_length: int) -> Tensor:
    """Mean over sequences of the sum over a sequence's tokens: 1 / sequences (LUSPO, arXiv 2602.05261).

    Arguments as in ``token_mean``. With ``Reinforce`` it is the policy gradient of whole sequences as in the textbook.
    The weights sum to the mean length, not to 1, so losses and gradients are that much larger.
    """
    del tokens, max_length
    return mask / max(sequences, 1)


def constant_length(mask: Tensor, *, tokens: float, sequences: float, max_length: int) -> Tensor:
    """Sum over tokens divided by a constant: 1 / (sequences · max_length) (Dr.GRPO, arXiv 2503.20783).

    Arguments as in ``token_mean``. The weights sum to mean length / max_length, not to 1: the loss is small when
    completions are short, which is meant.
    """
    del tokens
    return mask / (max(sequences, 1) * max_length)
