"""Where KV lies: from vLLM's tensors and cache groups to the plane's layout. Pure; sizes in bytes."""

import dataclasses
import re

HEADS_FIRST, TOKENS_FIRST = "hnd", "nhd"

# vLLM's kinds of groups that the plane moves, by the names of their specs' classes.
KINDS = {"FullAttentionSpec", "SlidingWindowSpec", "MLAAttentionSpec"}


class Unsupported(ValueError):
    """The cache is of a kind that the plane does not move."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """The cache of one layer on this rank: a view (blocks, heads, tokens of a block, content) of K and V joined."""

    name: str
    shape: tuple
    stride: tuple  # in elements
    itemsize: int
    address: int
    device: int = 0


@dataclasses.dataclass(frozen=True)
class Group:
    """A cache group of vLLM's."""

    kind: str  # the name of its spec's class
    layers: tuple
    block_tokens: int
    page: int  # bytes of one logical block of one layer
    heads: int  # on this rank
    window: int = 0  # tokens of a sliding window
    quantized: bool = False  # with scales beside the content
    draft: bool = False


def layer_index(name):
    """The place of a layer in the model, from its name: "model.layers.3.self_attn.attn" is 3."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    if len(numbers) != 1:
        raise Unsupported(f"the layer {name!r} has {len(numbers)} numbers in its name; want one")
    return int(numbers[0])


def describe(layers, groups, heads, tp, dtype, memory):
    """Returns the plane's cache and regions. layers: those of this rank, by name. heads: KV heads of the whole model. tp: how many
    tensor-parallel ranks share them. dtype: of an element. memory: "dram" or "vram"."""
    mla = {g.kind == "MLAAttentionSpec" for g in groups}
    if len(mla) != 1:
        raise Unsupported("MLA beside other attention" if mla else "no cache at all")
    replicated = mla.pop()
    heads = 1 if replicated else heads
    if len({g.block_tokens for g in groups}) != 1:
        raise Unsupported(f"groups with blocks of {sorted({g.block_tokens for g in groups})} tokens; want one size")
    block = groups[0].block_tokens
    regions, described, physical, orders, content = [], [], set(), set(), set()
    for g in groups:
        check(g, 1 if replicated else max(1, heads // tp))
        indices = []
        for name in g.layers:
            if name not in layers:
                continue  # another one's cache is used for it
            r, kernel, width = region(layers[name], g)
            if block % kernel:
                raise Unsupported(f"blocks of {block} tokens in kernel blocks of {kernel}")
            physical.add(block // kernel)
            content.add(width)
            orders.add(order(r))
            regions.append(r)
            indices.append(r["layer"])
        described.append({"layers": indices, "window": max(g.window - 1, 0)})  # a token's own KV is none that it waits for
    for what, found in (("kernel block sizes", physical), ("widths of a head", content)):
        if len(found) != 1:
            raise Unsupported(f"{what} differ between layers: {sorted(found)}")
    if len({r["layer"] for r in regions}) != len(regions):
        raise Unsupported("two caches of one layer")
    orders.discard(None)
    if len(orders) > 1:
        raise Unsupported("layers with heads first and with tokens first")
    cache = {
        "block_tokens": block,
        "physical": physical.pop(),
        "heads": heads,
        "head_bytes": content.pop(),
        "order": orders.pop() if orders else HEADS_FIRST,
        "dtype": dtype,
        "replicated": replicated,
        "memory": memory,
    }
    if len(described) > 1 or described[0]["window"]:
        cache["groups"] = described
    return cache, regions


def check(g, heads):
    """Raises Unsupported if the plane does not move a group."""
    if g.kind not in KINDS:
        raise Unsupported(f"a cache group of kind {g.kind}; the plane moves {', '.join(sorted(KINDS))}")
    if g.draft:
        raise Unsupported("a cache group of a draft model")
    if g.quantized:
        raise Unsupported("a cache with scales beside K and V")
    if g.window == 1:
        raise Unsupported("a sliding window of one token")
    if g.heads != heads:
        raise Unsupported(f"a group with {g.heads} KV heads on a rank; the model has {heads}")


def tokens_kept(groups):
    """How many tokens at the prompt's end decode computes itself. vLLM computes the last one again if it has them all, and has then
    given up a block that the last one's window still reaches into."""
    return 1 if any(g.window for g in groups) else 0


def region(layer, group):
    """One layer's region, the tokens of its kernel blocks, and the bytes of one head of one token."""
    if len(layer.shape) != 4:
        raise Unsupported(f"layer {layer.name}: a cache of shape {layer.shape}; want blocks, heads, tokens, content")
    blocks, heads, tokens, width = layer.shape
    if layer.stride[3] != 1 or heads != group.heads:
        raise Unsupported(f"layer {layer.name}: shape {layer.shape}, strides {layer.stride}; want {group.heads} heads and content in one piece")
    size = layer.itemsize
    if heads * tokens * width * size * (group.block_tokens // tokens or 1) != group.page:
        raise Unsupported(f"layer {layer.name}: a page of {group.page} bytes holds more than shape {layer.shape} of {size} bytes")
    strides = [s * size for s in layer.stride[:3]]
    return (
        {
            "layer": layer_index(layer.name),
            "planes": 1,
            "base": layer.address,
            "length": sum((n - 1) * s for n, s in zip(layer.shape[:3], strides)) + width * size,
            "blocks": blocks,
            "block_stride": strides[0],
            "plane_stride": 0,
            "head_stride": strides[1],
            "token_stride": strides[2],
            "device": layer.device,
        },
        tokens,
        width * size,
    )


def order(r):
    """What is outermost in a region's blocks."""
    return HEADS_FIRST if r["head_stride"] >= r["token_stride"] else TOKENS_FIRST
