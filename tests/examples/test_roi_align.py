"""ROI align equals a slow reference written from the definition, forward and backward."""

import contextlib
import math
import sys

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from examples import roi_align as example
from examples.compare import compare, worst_of
from examples.roi_align import ROIAlignFunction, inputs, plain, roi_align, sampled

align_op = torch.ops.pullback_examples.roi_align.default
backward_op = torch.ops.pullback_examples.roi_align_backward.default

# name: shape of the input, boxes, spatial scale, rows and columns of bins
CASES = {
    "inside": ((1, 2, 6, 7), [[0, 0.7, 1.1, 5.2, 4.9]], 1.0, (2, 2)),
    "across every border": ((1, 1, 5, 4), [[0, -2.3, -1.7, 6.1, 7.4]], 1.0, (3, 4)),
    "wholly outside": ((1, 2, 4, 4), [[0, 9.0, 9.0, 12.0, 14.0], [0, -9, -8, -3, -4]], 1.0, (2, 2)),
    "several images": (
        (3, 2, 5, 6),
        [[2, 0.5, 0.5, 4.5, 3.5], [0, 1.0, 1.0, 3.0, 4.0], [1, -0.6, 2.2, 5.9, 4.7]],
        1.0,
        (2, 3),
    ),
    "overlapping": (
        (1, 1, 6, 6),
        [[0, 0, 0, 4, 4], [0, 1, 1, 5, 5], [0, 1, 1, 5, 5], [0, 2.5, 0.5, 3.5, 5.5]],
        1.0,
        (2, 2),
    ),
    "scaled down": ((2, 1, 4, 5), [[1, 3.0, 2.0, 17.0, 13.0], [0, 0, 0, 20, 16]], 0.25, (3, 2)),
    "smaller than a pixel": ((1, 1, 5, 5), [[0, 2.2, 2.3, 2.4, 2.7]], 1.0, (2, 2)),
    "without an extent": ((1, 1, 5, 5), [[0, 2, 3, 2, 3], [0, 4, 4, 1, 1]], 1.0, (2, 2)),
    "on the pixels": ((1, 1, 5, 5), [[0, 0, 0, 4, 4], [0, 1, 1, 5, 5]], 1.0, (4, 4)),
    "a sample one pixel out": (
        (1, 1, 4, 4),
        [[0, -2, -2, 0, 0], [0, 3, 3, 5, 5], [0, -1.5, -1.5, 0.5, 0.5], [0, 3.5, 3.5, 5.5, 5.5]],
        1.0,
        (1, 1),
    ),
    "one pixel": ((1, 2, 1, 1), [[0, -0.4, 0.1, 1.3, 0.9]], 1.0, (2, 1)),
}
each_case = pytest.mark.parametrize("name", CASES)
each_ratio = pytest.mark.parametrize("ratio", [0, 1, 2, 3])
aligned_or_not = pytest.mark.parametrize("aligned", [False, True])


# ---- the reference: one weight at a time, in Python numbers ----


def neighbours(at, length):
    """The two pixels around a position on one axis, each with its weight; none far outside."""
    if at < -1.0 or at > length:
        return []
    at = max(at, 0.0)
    low = int(at)
    if low >= length - 1:
        return [(length - 1, 1.0)]
    return [(low, 1 - (at - low)), (low + 1, at - low)]


def reference_weights(case, ratio, aligned):
    """Yield ((box, row, column), (image, y, x), weight) for every sample of every bin."""
    (_, _, height, width), rois, scale, (rows, columns) = case
    offset = 0.5 if aligned else 0.0
    for box, (image, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (corner * scale - offset for corner in corners)
        tall, wide = y2 - y1, x2 - x1
        if not aligned:
            tall, wide = max(tall, 1.0), max(wide, 1.0)
        bin_height, bin_width = tall / rows, wide / columns
        grid_y = ratio if ratio > 0 else math.ceil(bin_height)
        grid_x = ratio if ratio > 0 else math.ceil(bin_width)
        for row in range(rows):
            for column in range(columns):
                for i in range(grid_y):
                    for j in range(grid_x):
                        y = y1 + row * bin_height + (i + 0.5) * bin_height / grid_y
                        x = x1 + column * bin_width + (j + 0.5) * bin_width / grid_x
                        for y_pixel, y_weight in neighbours(y, height):
                            for x_pixel, x_weight in neighbours(x, width):
                                weight = y_weight * x_weight / (grid_y * grid_x)
                                yield (box, row, column), (image, y_pixel, x_pixel), weight


def reference(features, case, ratio, aligned):
    """The output, by one addition per weight."""
    shape, rois, _, (rows, columns) = case
    output = torch.zeros(len(rois), shape[1], rows, columns, dtype=features.dtype)
    for (box, row, column), (image, y, x), weight in reference_weights(case, ratio, aligned):
        output[box, :, row, column] += weight * features[image, :, y, x]
    return output


def reference_backward(cotangent, case, ratio, aligned):
    """The gradient of the features, by one addition per weight."""
    gradient = torch.zeros(case[0], dtype=cotangent.dtype)
    for (box, row, column), (image, y, x), weight in reference_weights(case, ratio, aligned):
        gradient[image, :, y, x] += weight * cotangent[box, :, row, column]
    return gradient


# ---- calls ----


def features_of(case, dtype=torch.float64):
    return torch.randn(case[0], dtype=torch.float64).to(dtype).requires_grad_()


def rois_of(case, dtype=torch.float64):
    return torch.tensor(case[1], dtype=dtype).reshape(-1, 5)


def call(features, case, ratio, aligned):
    _, _, scale, bins = case
    return roi_align(
        features,
        rois_of(case).to(features),
        bins,
        spatial_scale=scale,
        sampling_ratio=ratio,
        aligned=aligned,
    )


# ---- values ----


@each_case
@each_ratio
@aligned_or_not
def test_output_equals_the_reference(name, ratio, aligned):
    features = features_of(CASES[name])
    got = call(features, CASES[name], ratio, aligned)

    torch.testing.assert_close(got, reference(features, CASES[name], ratio, aligned))
    assert got.is_contiguous()


@each_case
@each_ratio
@aligned_or_not
def test_gradient_equals_the_reference(name, ratio, aligned):
    features = features_of(CASES[name])
    output = call(features, CASES[name], ratio, aligned)
    cotangent = torch.randn_like(output)
    (got,) = torch.autograd.grad(output, features, cotangent)

    torch.testing.assert_close(got, reference_backward(cotangent, CASES[name], ratio, aligned))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "name",
    [
        "inside",
        "across every border",
        "overlapping",
        pytest.param("several images", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("ratio", "aligned"),
    [
        (0, False),
        (2, True),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((2, False), (0, True))),
    ],
)
def test_derivatives_equal_finite_differences(name, ratio, aligned):
    def function(features):
        return call(features, CASES[name], ratio, aligned)

    features = features_of(CASES[name])

    assert gradcheck(function, (features,))
    assert gradgradcheck(function, (features,))


def test_function_itself_passes_gradcheck():
    features, rois = inputs().values()

    assert gradcheck(ROIAlignFunction.apply, (features, rois, 0.5, 2, 3, 2, True))
    assert gradgradcheck(
        ROIAlignFunction.apply, (features, rois, 0.5, 2, 3, 2, True), fast_mode=True
    )


def test_equals_grid_sample_and_its_derivative():
    assert worst_of(compare(sampled, plain, inputs())).size < 1e-14


def test_constant_image_pools_to_itself():
    image = torch.full((1, 1, 8, 8), 2.5, dtype=torch.float64)
    box = torch.tensor([[0, 1.3, 0.9, 6.2, 7.1]], dtype=torch.float64)

    torch.testing.assert_close(
        roi_align(image, box, (3, 3)), torch.full((1, 1, 3, 3), 2.5).double()
    )


def test_overlapping_boxes_add_their_gradients():
    features = features_of(CASES["overlapping"])
    shape, rois, scale, bins = CASES["overlapping"]
    (together,) = torch.autograd.grad(call(features, CASES["overlapping"], 2, True).sum(), features)
    alone = [
        torch.autograd.grad(call(features, (shape, [box], scale, bins), 2, True).sum(), features)[0]
        for box in rois
    ]

    torch.testing.assert_close(together, sum(alone))


@each_ratio
@aligned_or_not
def test_no_boxes_give_no_rows_and_zero_gradient(ratio, aligned):
    features = features_of(CASES["inside"])
    output = call(features, ((1, 2, 6, 7), [], 1.0, (2, 3)), ratio, aligned)
    (gradient,) = torch.autograd.grad(output.sum(), features)

    assert output.shape == (0, 2, 2, 3)
    assert gradient.tolist() == torch.zeros(1, 2, 6, 7).tolist()


def test_result_does_not_depend_on_the_chunk(monkeypatch):
    case = CASES["several images"]
    features = features_of(case)
    whole = call(features, case, 2, True)
    (gradient,) = torch.autograd.grad(whole.square().sum(), features)
    monkeypatch.setattr(example, "CHUNK", 10)
    chunked = call(features, case, 2, True)
    (chunked_gradient,) = torch.autograd.grad(chunked.square().sum(), features)

    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(chunked_gradient, gradient)


def test_pixels_far_from_the_box_do_not_leak():
    features = torch.full((1, 1, 4, 4), torch.inf, dtype=torch.float64)
    box = torch.tensor([[0, 9.0, 9.0, 12.0, 12.0]], dtype=torch.float64)

    assert roi_align(features, box, (1, 1), sampling_ratio=2).item() == 0


def test_boxes_get_no_gradient():
    features, rois = inputs().values()
    rois.requires_grad_()
    output = sampled(features, rois)

    assert torch.autograd.grad(output.sum(), rois, allow_unused=True) == (None,)


def test_strided_features_and_cotangent_give_the_same():
    features = features_of(CASES["several images"])
    last = features.detach().to(memory_format=torch.channels_last).requires_grad_()
    output, of_last = (call(x, CASES["several images"], 2, True) for x in (features, last))
    cotangent = torch.randn(1, dtype=torch.float64).expand_as(output)

    torch.testing.assert_close(of_last, output)
    torch.testing.assert_close(
        torch.autograd.grad(of_last, last, cotangent),
        torch.autograd.grad(output, features, cotangent.contiguous()),
    )


# ---- precision ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ratio", [0, 2])
def test_half_precision_is_single_precision_rounded(dtype, ratio):
    case = ((1, 2, 40, 40), [[0, 3.3, 5.1, 37.7, 31.2]], 1.0, (3, 3))
    low = features_of(case, dtype)
    single = low.detach().float().requires_grad_()
    output = roi_align(low, rois_of(case), (3, 3), sampling_ratio=ratio)
    expected = roi_align(single, rois_of(case), (3, 3), sampling_ratio=ratio)
    cotangent = torch.randn(output.shape).to(dtype)
    (got,) = torch.autograd.grad(output, low, cotangent)
    (single_gradient,) = torch.autograd.grad(expected, single, cotangent.float())

    assert output.dtype == got.dtype == dtype
    torch.testing.assert_close(output, expected.to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(got, single_gradient.to(dtype), rtol=0, atol=0)


@each_ratio
def test_single_precision_is_close_to_the_reference(ratio):
    case = CASES["several images"]
    features = features_of(case, torch.float32)
    got = call(features, case, ratio, True)

    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), reference(features.double(), case, ratio, True), rtol=1e-5, atol=1e-5
    )


def test_autocast_does_not_lower_precision():
    case = CASES["several images"]
    features = features_of(case, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = call(features, case, 2, True)
    (gradient,) = torch.autograd.grad(output.sum(), features)
    (expected,) = torch.autograd.grad(call(features, case, 2, True).sum(), features)

    torch.testing.assert_close(output, call(features, case, 2, True), rtol=0, atol=0)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


# ---- the operator ----


@pytest.mark.parametrize("ratio", [0, 2])
def test_operators_pass_opcheck(ratio):
    features, rois = inputs().values()
    cotangent = torch.randn(3, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    results = [
        torch.library.opcheck(align_op, (features, rois, 1.0, 2, 4, ratio, True)),
        torch.library.opcheck(backward_op, (cotangent, rois, [2, 3, 6, 7], 1.0, ratio, True)),
    ]

    assert {result for each in results for result in each.values()} == {"SUCCESS"}


def test_meta_tensors_give_the_shape():
    features = torch.empty(2, 3, 6, 7, device="meta", requires_grad=True)
    output = roi_align(features, torch.empty(5, 5, device="meta"), (2, 4))
    (gradient,) = torch.autograd.grad(output.sum(), features)

    assert (output.shape, output.device.type) == ((5, 3, 2, 4), "meta")
    assert gradient.shape == (2, 3, 6, 7)


def test_operator_enters_its_function_once():
    features, rois = inputs().values()
    entered = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename == example.__file__:
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        align_op(features, rois, 1.0, 2, 2, 2, True)
    finally:
        sys.setprofile(None)

    assert entered.count("_align_autograd") == 1
    assert entered.count("forward") == 1
    assert entered.count("align") == 1


def test_operator_without_the_guard_reaches_itself(monkeypatch):
    features, rois = inputs().values()
    monkeypatch.setattr(example.pb, "below_autograd", contextlib.nullcontext)

    with pytest.raises(RecursionError):
        align_op(features, rois, 1.0, 2, 2, 2, True)


def test_node_is_the_function():
    node = sampled(*inputs().values()).grad_fn

    assert type(node).__name__ == "ROIAlignFunctionBackward"


def test_nothing_is_recorded_without_grad():
    features, rois = inputs().values()
    with torch.no_grad():
        output = sampled(features, rois)

    assert output.grad_fn is None
    torch.testing.assert_close(output, sampled(features, rois))


# ---- compiled ----


def loss_and_gradient(function, features, rois):
    loss = function(features, rois)
    return loss.detach(), torch.autograd.grad(loss, features)[0]


def pooled_loss(features, rois):
    return (2 * roi_align(features, rois, (2, 3), aligned=True)).square().sum()


def function_loss(features, rois):
    return ROIAlignFunction.apply(features, rois, 1.0, 2, 3, -1, True).square().sum()


@pytest.mark.parametrize("function", [pooled_loss, function_loss])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole_equals_eager(function, dynamic):
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    features, rois = inputs().values()
    for boxes in (rois, torch.cat([rois, rois + 0.25 * (rois > 1)])):
        got = loss_and_gradient(compiled, features, boxes)
        expected = loss_and_gradient(function, features, boxes)

        torch.testing.assert_close(got, expected)


@pytest.mark.needs_compiler
def test_compiled_by_inductor_equals_eager():
    features, rois = inputs().values()
    got = loss_and_gradient(torch.compile(pooled_loss, fullgraph=True), features, rois)

    torch.testing.assert_close(got, loss_and_gradient(pooled_loss, features, rois))


# ---- refusals ----


@pytest.mark.parametrize("image", [-1, 2])
def test_box_of_a_missing_image_is_refused(image):
    features = inputs()["input"]
    box = torch.tensor([[image, 0, 0, 2, 2]], dtype=torch.float64)

    with pytest.raises(IndexError, match=f"number of an image, 0 to 1; got {image} to {image}"):
        roi_align(features, box, (2, 2))


def test_wrong_shapes_are_refused():
    features, rois = inputs().values()

    with pytest.raises(RuntimeError, match=r"rois must have the shape \(K, 5\).*got \(3, 4\)"):
        roi_align(features, rois[:, 1:], (2, 2))
    with pytest.raises(RuntimeError, match=r"input must have the shape \(N, C, H, W\)"):
        roi_align(features[0], rois, (2, 2))
    with pytest.raises(RuntimeError, match="must be positive; got"):
        roi_align(features, rois, (0, 2))


# ---- on a GPU ----


@pytest.mark.needs_cuda
@each_case
@pytest.mark.parametrize("ratio", [0, 2])
def test_gpu_equals_cpu(name, ratio):
    on_cpu = features_of(CASES[name])
    on_gpu = on_cpu.detach().cuda().requires_grad_()
    output, expected = (call(x, CASES[name], ratio, True) for x in (on_gpu, on_cpu))
    (gradient,) = torch.autograd.grad(output.square().sum(), on_gpu)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), on_cpu)

    torch.testing.assert_close(output.cpu(), expected)
    torch.testing.assert_close(gradient.cpu(), expected_gradient)


@pytest.mark.needs_cuda
def test_gpu_rounds_a_sample_on_the_border_as_cpu():
    # One sample of the second bin lies at x = 2, the last position that counts.
    case = ((2, 1, 6, 2), [[1, -3, -1, 11, 5]], 0.5, (1, 3))
    features = features_of(case, torch.float32)
    expected = reference(features.double(), case, 0, False)

    for x in (features, features.cuda()):
        got = call(x, case, 0, False).cpu().double()

        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
