"""GPUs by their data sheets, and what is assumed of how much of that is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU and its place in a host of ``per_host`` of them. Rates per second and per direction."""

    name: str
    flops: float
    """Peak of dense products in the compute dtype (bfloat16, float32 sums), FLOP/s."""
    bandwidth: float
    """Of the card's memory, bytes/s."""
    memory: float
    """Bytes."""
    link: float
    """To the other cards of the host, one direction, bytes/s."""
    network: float
    """Of one host's network to other hosts, one direction, bytes/s."""
    matmul: float
    """Share of ``flops`` that a training step's arithmetic reaches; see ``source``."""
    source: str
    per_host: int = 8


CARDS = {
    "A100": Card(
        name="A100",
        flops=312e12,
        bandwidth=2.039e12,
        memory=80e9,
        link=300e9,
        network=8 * 25e9,
        matmul=0.50,
        source="NVIDIA A100 80GB SXM data sheet (312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s both ways); DGX A100: "
        "8 x 200 Gb/s. Share: torchtitan reports 52 to 58% in its FSDP2 runs on 64 A100",
    ),
    "H100": Card(
        name="H100",
        flops=989e12,
        bandwidth=3.35e12,
        memory=80e9,
        link=450e9,
        network=8 * 50e9,
        matmul=0.35,
        source="NVIDIA H100 SXM data sheet (1,979 TFLOP/s with sparsity, 3.35 TB/s, NVLink 900 GB/s both ways); DGX "
        "H100: 8 x 400 Gb/s. Share: torchtitan reports 33 to 39% (eager, compiled) on 8 and 128 H100",
    ),
    "H200": Card(
        name="H200",
        flops=989e12,
        bandwidth=4.8e12,
        memory=141e9,
        link=450e9,
        network=8 * 50e9,
        matmul=0.35,
        source="NVIDIA H200 SXM data sheet (as the H100, with 4.8 TB/s and 141 GB); DGX H200: 8 x 400 Gb/s. Share: "
        "the H100's",
    ),
    "RTX 4090": Card(
        name="RTX 4090",
        flops=165e12,
        bandwidth=1.008e12,
        memory=24e9,
        link=32e9,
        network=12.5e9,
        matmul=0.50,
        source="NVIDIA Ada architecture white paper (165 TFLOP/s with float32 sums, 1,008 GB/s, 24 GB, PCIe 4.0 x16, "
        "no NVLink). Assumed: 100 Gb/s of Ethernet a host, and the A100's share",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What no data sheet says. Each can be changed, and ``sensitivity`` in results.json shows which matter."""

    bandwidth_share: float = 0.8
    """Of a card's memory bandwidth, reached in decoding and by the optimizer. Fitted, see ``run.PUBLISHED``."""
    link_share: float = 0.8
    """Of link and network bandwidth, reached by collectives."""
    overlap: float = 0.8
    """Share of the compute time that collectives can hide behind (FSDP2 gathers the next layer while one computes)."""
    collective_s: float = 20e-6
    """Seconds that a collective takes however small."""
    hop_s: float = 2e-6
    """Seconds more for each rank that takes part (ring)."""
    kernel_s: float = 6e-6
    """Seconds between two kernels that Python launches: floor of a layer's time in small micro-batches."""
    kernels_forward: int = 50
    """Kernels of one layer's forward in eager mode; twice as many in its backward."""
    decode_step_s: float = 1e-3
    """Seconds of one decoding step beside reading weights and cache. Fitted, see ``run.PUBLISHED``."""
    decode_sequence_s: float = 10e-6
    """Seconds more for each sequence: vLLM draws the noise of every seeded request by a kernel of its own."""
    tensor_sync_s: float = 0.5e-3
    """Seconds that vLLM's reload takes for each tensor, beside moving its bytes."""
    wake_s: float = 1.0
    """Seconds to put an engine to sleep and to wake it, once a rollout."""
    reward_s: float = 1e-3
    """Seconds to score one completion; the ranks score side by side."""
    glue_s: float = 0.2
    """Seconds of a rollout's hooks, logging and tensors, and of each optimizer step's."""
    optimizer_bytes: int = 88
    """Bytes read and written for each trained parameter by AdamW's foreach form (76) and clipping (12)."""
    reserve: float = 0.08
    """Share of a card's memory lost to fragments."""
    context_bytes: float = 2e9
    """CUDA context, NCCL buffers, a sleeping engine's CUDA graphs."""
    chunk_bytes: float = 4 * 64 * 2**20
    """The fused head's, forward or backward (``functional.logprobs.CHUNK_BYTES``)."""


def collective_seconds(size: float, ranks: int, *, card: Card, assumed: Assumptions) -> float:
    """One ring all-gather or reduce-scatter of ``size`` bytes over consecutive ranks; an all-reduce is two of them.

    Within a host every card receives all but its own share over its link. Between hosts, all but its own share enters
    each host once, over all of its network.
    """
    if ranks == 1:
        return 0.0
    hosts = -(-ranks // card.per_host)
    inside = size * (ranks - 1) / ranks / card.link
    between = size * (hosts - 1) / hosts / card.network
    return max(inside, between) / assumed.link_share + assumed.collective_s + assumed.hop_s * (ranks - 1)
