"""Sorts the kernels of a program by purpose: attention, loss, LayerNorm, ..."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.compiler.hlo import Frame, Kernel, Operation
from benchmarks.compiler.schedule import kernel_seconds
from benchmarks.compiler.targets import Chip

# The areas of our lines. The first entry that fits applies, to the innermost call.
_AREAS = (  # file, part of the function's name, area
    ("ops/attention.py", "", "attention"),
    ("kernels/attention", "", "attention"),
    ("ops/losses.py", "", "loss"),
    ("finetuning/steps.py", "", "loss"),
    ("ops/layer_norm.py", "", "LayerNorm"),
    ("kernels/layer_norm", "", "LayerNorm"),
    ("ops/gelu.py", "", "GELU"),
    ("ops/lstm.py", "", "LSTM"),
    ("finetuning/unpad.py", "", "padding removal"),
    ("ops/products.py", "matmul", "dense"),
    ("model/execution.py", "dense", "dense"),
    ("model/execution.py", "project", "dense"),
    ("model/execution.py", "add_and_norm", "residual dropout"),
    ("model/execution.py", "look_up", "embedding"),
    ("model/execution.py", "unembedding", "embedding"),
    ("model/transformer.py", "embed", "embedding"),
    ("model/transformer.py", "MLP", "GELU"),
    ("model/transformer.py", "Attention", "attention"),
    ("model/transformer.py", "Block", "residual dropout"),
    ("model/lstm.py", "", "LSTM"),
    ("finetuning/heads.py", "", "head"),
    ("training/optimizer.py", "", "optimizer"),
    ("training/state.py", "", "optimizer"),
    ("training/steps.py", "accumulated_gradients", "optimizer"),  # sums of gradients
    ("inference/", "", "sampling"),
)
_SCOPES = (("/gelu/", "GELU"),)  # part of JAX's name, which says more than the line
_NAMES = (  # part of JAX's name, where only that is known
    ("/c_", "dense"),
    ("/attn/", "attention"),
    ("/ln_", "LayerNorm"),
    ("/mlp/", "GELU"),
    ("/Block/", "residual dropout"),
)
_COLLECTIVES = ("all-", "collective-", "ragged-all-", "reduce-scatter")
_HASH = "dropout hash"
_OTHER = "copies and other"
_WITH_PRODUCTS = ("attention", "dense", "loss")
# Operations that compute nothing: a kernel is for what its others are for.
_MOVES = {
    "bitcast",
    "broadcast",
    "concatenate",
    "convert",
    "copy",
    "dynamic-slice",
    "dynamic-update-slice",
    "pad",
    "reshape",
    "reverse",
    "slice",
    "transpose",
}
_NOT_COUNTED = {"constant", "fusion", "get-tuple-element", "iota", "parameter", "tuple"}
_NUM_LARGEST = 20


def kind(kernel: Kernel) -> str:
    """A kernel's purpose: an area of the model, and whether it multiplies matrices.

    The purpose of a kernel with products is that of the largest one; that of any other
    kernel is the purpose of most elements that it computes. Kernels that only make
    random bits are a kind of their own; those that also use them are "with hash".
    """
    if any(o.op.startswith(_COLLECTIVES) for o in kernel.operations):
        return "collectives"
    area = _area(_main_operations(kernel))
    unsigned = [o for o in kernel.operations if o.dtype in ("u8", "u16", "u32")]
    multiplies = any(operation.flops for operation in kernel.operations)
    if unsigned and not multiplies and not any(map(_is_float, kernel.operations)):
        return area if area == "sampling" else _HASH
    if multiplies:
        area = f"{'other' if area == _OTHER else area} products"
    elif area in _WITH_PRODUCTS:
        area = f"{area} rest"
    return f"{area} with hash" if _holds_hash(kernel) else area


def _is_float(operation: Operation) -> bool:
    return "f" in operation.dtype and operation.op not in _NOT_COUNTED


def _holds_hash(kernel: Kernel) -> bool:
    """Whether it makes random bits for all elements that it computes, not for a few."""
    most = max(operation.elements for operation in kernel.operations)
    return any(o.op == "xor" and 8 * o.elements >= most for o in kernel.operations)


def _main_operations(kernel: Kernel) -> list[Operation]:
    """The largest product, or else the operations that compute, or else all."""
    largest = max(kernel.operations, key=lambda operation: operation.flops)
    if largest.flops:
        return [largest]
    counted = [o for o in kernel.operations if o.op not in _NOT_COUNTED]
    computing = [o for o in counted if not _only_moves(o) and _area_of(o)]
    return computing or counted


def _only_moves(operation: Operation) -> bool:
    """Whether it computes nothing; to concatenate, XLA pads and takes maxima."""
    return operation.op in _MOVES or operation.name.endswith("/concatenate")


def _area(operations: Iterable[Operation]) -> str:
    """The area that most elements computed by these operations belong to."""
    votes: Counter[str] = Counter()
    for operation in operations:
        if area := _area_of(operation):
            votes[area] += operation.elements
    return max(votes, key=lambda area: votes[area], default=_OTHER)


def _area_of(operation: Operation) -> str:
    """The area of the line of ours that an operation comes from; "" if unknown."""
    scopes, names = (
        [area for part, area in known if part in operation.name]
        for known in (_SCOPES, _NAMES)
    )
    lines = (_area_of_line(frame) for frame in operation.frames)
    return next((area for area in (*scopes, *lines, *names) if area), "")


def _area_of_line(frame: Frame) -> str:
    """The area of a line of ours; "" for other lines and those that serve several."""
    file = _own_path(frame)
    for path, function, area in _AREAS:
        if file.startswith(path) and function in frame.function:
            return area
    return ""


def _own_path(frame: Frame) -> str:
    """A file's path in the package; "" outside of it."""
    _, package, path = frame.file.rpartition("/gpt1_jax/")
    outside = path.startswith("benchmarks/") or "site-packages" in path
    return path if package and not outside else ""


def line(kernel: Kernel) -> str:
    """The line of ours that most elements of a kernel come from.

    Of a backward pass JAX names the line that called the forward pass.
    """
    votes: Counter[str] = Counter()
    for operation in _main_operations(kernel):
        own = [frame for frame in operation.frames if _own_path(frame)]
        shown = next((f for f in own if _area_of_line(f)), own[0] if own else None)
        if shown:
            name = f"{_own_path(shown)}:{shown.line}"
            backward = ", backward" if "transpose(" in operation.name else ""
            votes[name + backward] += operation.elements
    return votes.most_common(1)[0][0] if votes else ""


def by_kind(kernels: Iterable[Kernel], chip: Chip | None) -> dict[str, dict[str, Any]]:
    """Sums over the kernels of each kind, in one run of a program on one device.

    Returns:
      For each kind, the one that moves most first: `kernels` executed, `bytes` moved,
      `flops` of products, and of a chip the seconds these take at its full rates
      (`bytes_seconds`, `flops_seconds`) and those that are estimated
      (`estimated_seconds`; None if the compiler gives a TPU's kernels no cycles). Of
      kernels of a GPU also the `instructions` that their warps execute, and the most
      `registers` and `spilled_bytes` of a thread.
    """
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault(kind(kernel), []).append(kernel)
    sums = {name: _sums(group, chip) for name, group in groups.items()}
    return dict(sorted(sums.items(), key=lambda item: -item[1]["bytes"]))


def _sums(kernels: Sequence[Kernel], chip: Chip | None) -> dict[str, Any]:
    num_bytes = sum(k.times * k.bytes for k in kernels)
    flops = sum(k.times * k.flops for k in kernels)
    times = [(k.times, chip and kernel_seconds(k, chip)) for k in kernels]
    estimated = [number * time for number, time in times if time is not None]
    sums = {
        "kernels": sum(k.times for k in kernels if not k.is_transfer),
        "bytes": num_bytes,
        "flops": flops,
        "bytes_seconds": num_bytes / chip.bytes_per_second if chip else None,
        "flops_seconds": flops / chip.flops_per_second if chip else None,
        "estimated_seconds": sum(estimated) if estimated else None,
    }
    if codes := [(k.times, k.code) for k in kernels if k.code]:
        issued = [times * (code.instructions or 0) for times, code in codes]
        sums["instructions"] = sum(issued)
        sums["registers"] = max(code.registers for _, code in codes)
        sums["spilled_bytes"] = max(code.spilled_bytes for _, code in codes)
    return sums


def largest(kernels: Iterable[Kernel], chip: Chip | None) -> list[dict[str, Any]]:
    """The kernels that take most time, by the compiler's estimate or at full rates.

    Those of one kind, line and type of results are one entry, with the sums of
    `by_kind`. `operation` is JAX's name of a kernel's product or result.
    """
    groups: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in kernels:
        key = kind(kernel), kernel.op, _shape(kernel), line(kernel), _name(kernel)
        groups.setdefault(key, []).append(kernel)
    names = "kind", "op", "result", "line", "operation"
    found = [
        {**dict(zip(names, key, strict=True)), **_sums(group, chip)}
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda entry: -_time(entry))[:_NUM_LARGEST]


def _name(kernel: Kernel) -> str:
    """JAX's name of the largest product, or of what a kernel results in."""
    main = _main_operations(kernel)
    names = [operation.name for operation in (*kernel.operations[:1], *main)]
    if main and main[0].flops:
        return main[0].name
    return next((name for name in names if name), "")


def _shape(kernel: Kernel) -> str:
    """The largest array of a kernel's results, and how many others there are."""
    if not kernel.results:
        return ""
    most = max(kernel.results, key=lambda array: array.bytes)
    others = f" + {len(kernel.results) - 1}" if len(kernel.results) > 1 else ""
    return f"{most.dtype}[{','.join(map(str, most.shape))}]{others}"


def _time(sums: Mapping[str, Any]) -> float:
    """The number that kernels are ranked by: seconds, or bytes without a chip."""
    times = (sums[f"{name}_seconds"] for name in ("bytes", "flops", "estimated"))
    return max((time for time in times if time is not None), default=sums["bytes"])


def tables(result: Mapping[str, Any], chip: Chip | None) -> str:
    """The results of `by_kind` and `largest` as tables."""
    rates = ("GB at full rate, ms", "products at full rate, ms", "estimated, ms")
    numbers = ("kernels", "GB", *rates)
    kinds = result["kinds"]
    of_gpu = any("registers" in sums for sums in kinds.values())
    if of_gpu:
        numbers += ("instructions of warps, M", "registers", "spilled, bytes")
    rows = [[name, *_cells(sums, of_gpu)] for name, sums in kinds.items()]
    by_kind_table = harness.markdown(("kind", *numbers), rows)
    rows = []
    for entry in result["largest_kernels"]:
        what = _code(entry["result"]), entry["line"], _code(_tail(entry["operation"]))
        rows.append([*what, entry["kind"], *_cells(entry, of_gpu)])
    header = ("result", "line", "operation", "kind", *numbers)
    largest_table = harness.markdown(header, rows, text_columns=4)
    return "\n\n".join([_totals(kinds.items(), chip), by_kind_table, largest_table])


def _totals(kinds: Iterable[tuple[str, Mapping[str, Any]]], chip: Chip | None) -> str:
    """Bytes and products of a whole program, and the least time that they take."""
    total: Counter[str] = Counter()
    for name, sums in kinds:
        total.update({key: value for key, value in sums.items() if value})
        if chip and "products" not in name:
            total["outside"] += sums["bytes_seconds"]
    text = f"{total['bytes'] / 1e9:.1f} GB moved, {total['flops'] / 1e12:.3g} TFLOP"
    if chip:
        products, others = (total[key] * 1e3 for key in ("flops_seconds", "outside"))
        text += (
            f"; at least {products:.2f} ms for products at "
            f"{chip.flops_per_second / 1e12:.0f} TFLOP/s and {others:.2f} ms for bytes "
            f"outside of them at {chip.bytes_per_second / 1e9:.0f} GB/s"
        )
    if estimated := total["estimated_seconds"]:
        how = "by the compiler's cycles" if chip.cycles_per_second else "estimated"
        text += f"; {estimated * 1e3:.2f} ms {how}"
    return text


def _cells(sums: Mapping[str, Any], of_gpu: bool) -> list[str]:
    """The numbers of `_sums`, in GB, ms and millions."""
    times = (sums[f"{name}_seconds"] for name in ("bytes", "flops", "estimated"))
    cells = [
        f"{sums['kernels']}",
        f"{sums['bytes'] / 1e9:.3f}",
        *(f"{time * 1e3:.2f}" if time else "-" for time in times),
    ]
    if not of_gpu:
        return cells
    issued = sums.get("instructions")
    code = (sums.get(name, "-") for name in ("registers", "spilled_bytes"))
    return [*cells, f"{issued / 1e6:.1f}" if issued else "-", *map(str, code)]


def _tail(name: str) -> str:
    """The end of JAX's name of an operation, without parts that only call others."""
    calls = ("body", "branch_", "closed_call", "cond", "jit(", "jvp()", "while")
    parts = [part for part in name.split("/") if not part.startswith(calls)]
    return "/".join(parts[-3:])[-48:]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
