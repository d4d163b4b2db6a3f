"""ROI align: the features of an image, pooled over boxes at fractional positions.

Each bin is the mean of a few bilinear samples, so the output is linear in the features: output =
A input, with the bilinear weights in A. Backward is the transpose, A^T cotangent. The boxes get
no gradient.

The kernels are two operators in PyTorch's dispatcher, `pullback_examples::roi_align` and
`pullback_examples::roi_align_backward`. Each has a kernel for every device, a shape rule for
`torch.compile`, and a Function as its Autograd kernel. That Function calls the same operator again,
under `pb.below_autograd()`: without the guard it would reach itself, forever.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

import pullback as pb
from examples.compare import Inputs, compare, verdict_on

# ---- the kernels ----

# Numbers that a kernel gathers at a time: 64 MiB of float32.
CHUNK = 2**24


def align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """The kernel of `roi_align`: `A input`, computed in float32 or better."""
    pooled = (pooled_height, pooled_width)
    rois = rois.to(torch.promote_types(input.dtype, torch.float32))
    options = {"spatial_scale": spatial_scale, "sampling_ratio": sampling_ratio, "aligned": aligned}
    bins, pixels, weights = _entries(rois, input.shape, pooled, **options)
    table = input.permute(0, 2, 3, 1).flatten(0, 2).to(rois.dtype)
    output = table.new_zeros(len(rois), *pooled, input.shape[1])
    _accumulate(output.flatten(0, 2), bins, table, pixels, weights)
    return output.permute(0, 3, 1, 2).to(input.dtype).contiguous()


def align_backward(
    cotangent: Tensor,
    rois: Tensor,
    input_shape: list[int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """The kernel of `roi_align_backward`: `A^T cotangent`, computed in float32 or better."""
    batch, channels, height, width = input_shape
    rois = rois.to(torch.promote_types(cotangent.dtype, torch.float32))
    options = {"spatial_scale": spatial_scale, "sampling_ratio": sampling_ratio, "aligned": aligned}
    bins, pixels, weights = _entries(rois, input_shape, tuple(cotangent.shape[2:]), **options)
    table = cotangent.permute(0, 2, 3, 1).flatten(0, 2).to(rois.dtype)
    gradient = table.new_zeros(batch, height, width, channels)
    _accumulate(gradient.flatten(0, 2), pixels, table, bins, weights)
    return gradient.permute(0, 3, 1, 2).to(cotangent.dtype).contiguous()


def _accumulate(to: Tensor, row: Tensor, table: Tensor, column: Tensor, weights: Tensor) -> None:
    """Add `weights[i] * table[column[i]]` to `to[row[i]]`, in place, for every i: A times a table.

    Not by a sparse tensor: torch 2.11 on CUDA was seen to give zeros for the last row of A.
    """
    step = max(1, CHUNK // max(1, table.shape[1]))
    for part in zip(row.split(step), column.split(step), weights.split(step), strict=True):
        to.index_add_(0, part[0], table[part[1]] * part[2][:, None])


def _entries(
    rois: Tensor,
    shape: list[int],
    pooled: tuple[int, int],
    *,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of the matrix A: for each the number of the bin, of the pixel, and the weight.

    Bins are numbered through all boxes, row by row, and pixels through all images.
    """
    _require_shapes(shape, rois, pooled)
    batch, _, height, width = shape
    image = rois[:, 0].long()
    _require_images(image, batch)
    corners = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    left, top, right, bottom = corners.unbind(1)
    tall, wide = bottom - top, right - left
    if not aligned:
        tall, wide = tall.clamp(min=1), wide.clamp(min=1)

    bins = torch.arange(len(rois) * pooled[0] * pooled[1], device=rois.device)
    bins = bins.reshape(len(rois), *pooled, 1, 1)
    parts = [(bins.new_zeros(0), bins.new_zeros(0), rois.new_zeros(0))]
    tall, wide = _divide(tall, pooled[0]), _divide(wide, pooled[1])  # of a bin, from here on
    for group, grid in _groups(tall, wide, sampling_ratio):
        y, of_y, y_inside = _taps(top[group], tall[group], pooled[0], grid[0], height)
        x, of_x, x_inside = _taps(left[group], wide[group], pooled[1], grid[1], width)
        y, of_y, y_inside = (t[:, :, None, :, None] for t in (y, of_y, y_inside))
        x, of_x, x_inside = (t[:, None, :, None, :] for t in (x, of_x, x_inside))
        pixels = (image[group].reshape(-1, 1, 1, 1, 1) * height + y) * width + x
        weights = of_y * of_x / (grid[0] * grid[1])
        inside = y_inside & x_inside
        parts.append((bins[group].expand_as(pixels)[inside], pixels[inside], weights[inside]))
    row, column, weight = (torch.cat(part) for part in zip(*parts, strict=True))
    return row, column, weight


def _groups(
    bin_height: Tensor, bin_width: Tensor, sampling_ratio: int
) -> Iterator[tuple[Tensor, tuple[int, int]]]:
    """The boxes that share one grid of samples per bin, and the (rows, columns) of that grid.

    A positive `sampling_ratio` is the grid of all boxes. Otherwise a bin gets about one sample
    per pixel, and one without an extent gets none: it stays zero.
    """
    if sampling_ratio > 0:
        yield torch.arange(len(bin_height), device=bin_height.device), (sampling_ratio,) * 2
        return
    grids = torch.stack((bin_height, bin_width), dim=1).ceil().long()
    kinds, kind_of = torch.unique(grids, dim=0, return_inverse=True)
    for number, (rows, columns) in enumerate(kinds.tolist()):
        if rows > 0 and columns > 0:
            yield (kind_of == number).nonzero().flatten(), (rows, columns)


def _taps(
    start: Tensor, size: Tensor, pooled: int, grid: int, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Along one axis, for every box and bin: the pixels its samples touch, weights, inside or not.

    Each sample lies between two pixels, so all three have the shape (boxes, pooled, 2 grid).
    """
    start, size = start[:, None, None], size[:, None, None]
    number = torch.arange(pooled, device=start.device)[:, None]
    part = torch.arange(grid, device=start.device) + 0.5
    position = start + number * size + _divide(part.to(start.dtype) * size, grid)
    # Up to one pixel beyond the border a sample counts, as the border; further out it is zero.
    inside = (position >= -1) & (position <= length)
    position = position.clamp(0, length - 1)
    low = position.floor()
    fraction = position - low
    pixels = torch.stack((low, (low + 1).clamp(max=length - 1)), dim=-1).long()
    weights = torch.stack((1 - fraction, fraction), dim=-1)
    return pixels.flatten(2), weights.flatten(2), inside.repeat_interleave(2, dim=2)


def _divide(value: Tensor, number: int) -> Tensor:
    # By a tensor: CUDA divides by a number through its reciprocal, and the last digit decides
    # whether a sample on the border counts.
    return value / value.new_tensor(number)


def _require_shapes(shape: list[int], rois: Tensor, pooled: tuple[int, int]) -> None:
    torch._check(
        len(shape) == 4 and shape[2] > 0 and shape[3] > 0,
        lambda: f"input must have the shape (N, C, H, W) with H, W > 0; got {tuple(shape)}",
    )
    torch._check(
        rois.dim() == 2 and rois.shape[1] == 5,
        lambda: f"rois must have the shape (K, 5): image, x1, y1, x2, y2; got {tuple(rois.shape)}",
    )
    torch._check(
        pooled[0] > 0 and pooled[1] > 0,
        lambda: f"pooled_height and pooled_width must be positive; got {tuple(pooled)}",
    )


def _require_images(image: Tensor, batch: int) -> None:
    if len(image) and not 0 <= int(image.min()) <= int(image.max()) < batch:
        raise IndexError(
            f"rois[:, 0] must be the number of an image, 0 to {batch - 1}; "
            f"got {int(image.min())} to {int(image.max())}"
        )


# ---- the Functions ----


class ROIAlignFunction(pb.Function):
    """ROI align of `input` (N, C, H, W) over `rois` (K, 5): image, x1, y1, x2, y2 in each row.

    The output (K, C, pooled_height, pooled_width) is A input; with cotangent g the gradient of
    `input` is A^T g. `rois` get none.
    """

    @staticmethod
    def forward(
        ctx, input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned
    ):
        ctx.save_for_backward(rois)
        ctx.saved_data["input_shape"] = input.shape
        ctx.saved_data["options"] = (spatial_scale, sampling_ratio, aligned)
        with pb.below_autograd():
            return torch.ops.pullback_examples.roi_align(
                input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned
            )

    @staticmethod
    def backward(ctx, cotangent):
        (rois,) = ctx.saved_tensors
        shape, options = ctx.saved_data["input_shape"], ctx.saved_data["options"]
        # Not below autograd: the second derivative is that of the backward operator.
        gradient = torch.ops.pullback_examples.roi_align_backward(cotangent, rois, shape, *options)
        return {"input": gradient}


class ROIAlignBackwardFunction(pb.Function):
    """The backward of ROI align: A^T cotangent, a linear function like the forward.

    With a cotangent h of its own the gradient is A h: ROI align again.
    """

    @staticmethod
    def forward(ctx, cotangent, rois, input_shape, spatial_scale, sampling_ratio, aligned):
        ctx.save_for_backward(rois)
        ctx.saved_data["pooled"] = cotangent.shape[2:]
        ctx.saved_data["options"] = (spatial_scale, sampling_ratio, aligned)
        with pb.below_autograd():
            return torch.ops.pullback_examples.roi_align_backward(
                cotangent, rois, input_shape, spatial_scale, sampling_ratio, aligned
            )

    @staticmethod
    def backward(ctx, cotangent):
        (rois,) = ctx.saved_tensors
        height, width = ctx.saved_data["pooled"]
        spatial_scale, sampling_ratio, aligned = ctx.saved_data["options"]
        gradient = torch.ops.pullback_examples.roi_align(
            cotangent, rois, spatial_scale, height, width, sampling_ratio, aligned
        )
        return {"cotangent": gradient}


# ---- the operators ----

_LIBRARY = torch.library.Library("pullback_examples", "FRAGMENT")
_LIBRARY.define(
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
)
_LIBRARY.define(
    "roi_align_backward(Tensor cotangent, Tensor rois, SymInt[] input_shape, "
    "float spatial_scale, int sampling_ratio, bool aligned) -> Tensor"
)
_LIBRARY.impl("roi_align", align, "CompositeExplicitAutograd")
_LIBRARY.impl("roi_align_backward", align_backward, "CompositeExplicitAutograd")


@torch.library.register_fake("pullback_examples::roi_align", lib=_LIBRARY)
def _(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    _require_shapes(input.shape, rois, (pooled_height, pooled_width))
    return input.new_empty(rois.shape[0], input.shape[1], pooled_height, pooled_width)


@torch.library.register_fake("pullback_examples::roi_align_backward", lib=_LIBRARY)
def _(cotangent, rois, input_shape, spatial_scale, sampling_ratio, aligned):
    _require_shapes(input_shape, rois, cotangent.shape[2:])
    return cotangent.new_empty(input_shape)


def _align_autograd(*args):
    return ROIAlignFunction.apply(*args)


def _align_backward_autograd(*args):
    return ROIAlignBackwardFunction.apply(*args)


_LIBRARY.impl("roi_align", _align_autograd, "Autograd")
_LIBRARY.impl("roi_align_backward", _align_backward_autograd, "Autograd")


def roi_align(
    input: Tensor,
    rois: Tensor,
    output_size: tuple[int, int],
    *,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """ROI align through the operator, with the defaults of `torchvision.ops.roi_align`.

    Arguments:
        input: features, (N, C, H, W).
        rois: boxes, (K, 5): number of the image, then x1, y1, x2, y2 in the image's own units.
        output_size: rows and columns of bins per box.
        spatial_scale: pixels of `input` per unit of the boxes.
        sampling_ratio: samples per bin along each axis; 0 or less: about one per pixel.
        aligned: shift the boxes by half a pixel, so that pixel centres lie at integers.

    Returns:
        One (C, rows, columns) of bins per box: (K, C, rows, columns).
    """
    return torch.ops.pullback_examples.roi_align(
        input, rois, spatial_scale, *output_size, sampling_ratio, aligned
    )


# ---- the same by another way ----

SAMPLES, BINS = 2, (3, 2)


def plain(input: Tensor, rois: Tensor) -> Tensor:
    """The same by `grid_sample` and `avg_pool2d`: aligned, `SAMPLES` per bin, `BINS` per box."""
    *_, height, width = input.shape
    corners = rois[:, 1:] - 0.5
    y = _centres(corners[:, 1], corners[:, 3], SAMPLES * BINS[0])[:, :, None]
    x = _centres(corners[:, 0], corners[:, 2], SAMPLES * BINS[1])[:, None, :]
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    # grid_sample counts from -1, the first pixel, to 1, the last.
    grid = torch.broadcast_tensors(2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1)
    samples = functional.grid_sample(
        input[rois[:, 0].long()], torch.stack(grid, -1), padding_mode="border", align_corners=True
    )
    return functional.avg_pool2d(samples * inside[:, None], SAMPLES)


def _centres(first: Tensor, last: Tensor, count: int) -> Tensor:
    parts = (torch.arange(count, dtype=first.dtype) + 0.5) / count
    return first[:, None] + parts * (last - first)[:, None]


def sampled(input: Tensor, rois: Tensor) -> Tensor:
    """What `plain` computes, by the operator."""
    return roi_align(input, rois, BINS, sampling_ratio=SAMPLES, aligned=True)


def inputs() -> Inputs:
    """Two small images, and boxes inside, across the border, and overlapping."""
    generator = torch.Generator().manual_seed(0)
    input = torch.randn(2, 3, 6, 7, dtype=torch.float64, generator=generator)
    rois = torch.tensor(
        [[0, 0.7, 1.1, 5.2, 4.9], [1, -2.4, -1.8, 4.1, 3.3], [0, 2.0, 2.0, 8.5, 7.5]],
        dtype=torch.float64,
    )
    return {"input": input.requires_grad_(), "rois": rois}


def main() -> None:
    """Pool three boxes of two images, and print how far the gradient is from PyTorch's."""
    point = inputs()
    output = sampled(*point.values())
    print("ROIAlignFunction: features pooled over boxes at fractional positions\n")
    for (image, *box), bins in zip(point["rois"].tolist(), output.detach(), strict=True):
        corners = ", ".join(f"{corner:4.1f}" for corner in box)
        print(f"  image {image:.0f}, box ({corners}): first channel, {BINS[0]} x {BINS[1]} bins")
        print("\n".join("    " + "  ".join(f"{v:8.4f}" for v in row) for row in bins[0].tolist()))
    print(f"\nNode: {type(output.grad_fn).__name__}, put there by the operator itself.")
    print("The reference is grid_sample, then the mean over each bin.")
    print(verdict_on(compare(sampled, plain, point)))


if __name__ == "__main__":
    main()
