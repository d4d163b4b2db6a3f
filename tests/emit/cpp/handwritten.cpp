// MyReLU and ROI align as PyTorch's documentation has people write them: the emitted ops are
// compared with these.

#include <ATen/Dispatch.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

namespace handwritten {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- MyReLU ----

struct MyReLU : public torch::autograd::Function<MyReLU> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto out = x.clamp_min(0);
    ctx->save_for_backward({out});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    auto out = ctx->get_saved_variables()[0];
    return {cotangents[0].masked_fill(out.le(0), 0)};
  }
};

at::Tensor relu_autograd(const at::Tensor& x) { return MyReLU::apply(x); }
at::Tensor relu_plain(const at::Tensor& x) { return x.clamp_min(0); }

// ---- ROI align: bilinear samples, a half-pixel shift, `samples` per bin along each axis ----

struct Tap {
  int64_t y0, x0, y1, x1;
  double w00, w01, w10, w11;
  bool inside;
};

Tap tap_at(double y, double x, int64_t height, int64_t width) {
  Tap tap{};
  tap.inside = y >= -1 && y <= height && x >= -1 && x <= width;
  if (!tap.inside) return tap;
  y = std::clamp(y, 0.0, double(height - 1));
  x = std::clamp(x, 0.0, double(width - 1));
  tap.y0 = int64_t(y), tap.x0 = int64_t(x);
  tap.y1 = std::min(tap.y0 + 1, height - 1), tap.x1 = std::min(tap.x0 + 1, width - 1);
  const double ly = y - tap.y0, lx = x - tap.x0;
  tap.w00 = (1 - ly) * (1 - lx), tap.w01 = (1 - ly) * lx;
  tap.w10 = ly * (1 - lx), tap.w11 = ly * lx;
  return tap;
}

// Calls `use(box, image, row, column, tap)` for every sample of every bin.
template <class Use>
void each_sample(
    const at::Tensor& rois, int64_t rows, int64_t columns, int64_t samples, int64_t height,
    int64_t width, Use use) {
  const auto boxes = rois.contiguous();
  const auto* box = boxes.const_data_ptr<double>();
  for (int64_t k = 0; k < boxes.size(0); ++k, box += 5) {
    const double left = box[1] - 0.5, top = box[2] - 0.5;
    const double wide = (box[3] - box[1]) / columns, tall = (box[4] - box[2]) / rows;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t a = 0; a < samples; ++a)
          for (int64_t b = 0; b < samples; ++b) {
            const double y = top + (i + (a + 0.5) / samples) * tall;
            const double x = left + (j + (b + 0.5) / samples) * wide;
            use(k, int64_t(box[0]), i, j, tap_at(y, x, height, width));
          }
  }
}

at::Tensor align_cpu(
    const at::Tensor& input, const at::Tensor& rois, int64_t rows, int64_t columns,
    int64_t samples) {
  const auto features = input.contiguous();
  const auto channels = features.size(1), height = features.size(2), width = features.size(3);
  auto out = at::zeros({rois.size(0), channels, rows, columns}, features.options());
  const auto* from = features.const_data_ptr<double>();
  auto* to = out.data_ptr<double>();
  const double share = 1.0 / (samples * samples);
  each_sample(rois, rows, columns, samples, height, width,
      [&](int64_t k, int64_t n, int64_t i, int64_t j, const Tap& tap) {
        if (!tap.inside) return;
        for (int64_t c = 0; c < channels; ++c) {
          const auto* page = from + (n * channels + c) * height * width;
          to[((k * channels + c) * rows + i) * columns + j] += share *
              (tap.w00 * page[tap.y0 * width + tap.x0] + tap.w01 * page[tap.y0 * width + tap.x1] +
               tap.w10 * page[tap.y1 * width + tap.x0] + tap.w11 * page[tap.y1 * width + tap.x1]);
        }
      });
  return out;
}

at::Tensor align_backward_cpu(
    const at::Tensor& cotangent, const at::Tensor& rois, at::IntArrayRef shape, int64_t samples) {
  const auto given = cotangent.contiguous();
  const auto channels = shape[1], height = shape[2], width = shape[3];
  const auto rows = given.size(2), columns = given.size(3);
  auto gradient = at::zeros(shape, given.options());
  const auto* from = given.const_data_ptr<double>();
  auto* to = gradient.data_ptr<double>();
  const double share = 1.0 / (samples * samples);
  each_sample(rois, rows, columns, samples, height, width,
      [&](int64_t k, int64_t n, int64_t i, int64_t j, const Tap& tap) {
        if (!tap.inside) return;
        for (int64_t c = 0; c < channels; ++c) {
          auto* page = to + (n * channels + c) * height * width;
          const double g = share * from[((k * channels + c) * rows + i) * columns + j];
          page[tap.y0 * width + tap.x0] += tap.w00 * g;
          page[tap.y0 * width + tap.x1] += tap.w01 * g;
          page[tap.y1 * width + tap.x0] += tap.w10 * g;
          page[tap.y1 * width + tap.x1] += tap.w11 * g;
        }
      });
  return gradient;
}

at::Tensor align(
    const at::Tensor& input, const at::Tensor& rois, int64_t rows, int64_t columns,
    int64_t samples) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("handwritten::roi_align", "")
                       .typed<decltype(align_cpu)>();
  return op.call(input, rois, rows, columns, samples);
}

struct ROIAlign : public torch::autograd::Function<ROIAlign> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& input, const at::Tensor& rois, int64_t rows,
      int64_t columns, int64_t samples) {
    ctx->saved_data["shape"] = input.sizes();
    ctx->saved_data["samples"] = samples;
    ctx->save_for_backward({rois});
    at::AutoDispatchBelowADInplaceOrView guard;
    return align(input, rois, rows, columns, samples);
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    auto rois = ctx->get_saved_variables()[0];
    auto shape = ctx->saved_data["shape"].toIntVector();
    auto samples = ctx->saved_data["samples"].toInt();
    auto gradient = align_backward_cpu(cotangents[0], rois, shape, samples);
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor align_autograd(
    const at::Tensor& input, const at::Tensor& rois, int64_t rows, int64_t columns,
    int64_t samples) {
  return ROIAlign::apply(input, rois, rows, columns, samples);
}

}  // namespace handwritten

TORCH_LIBRARY(handwritten, m) {
  m.def("my_relu(Tensor x) -> Tensor");
  m.def("roi_align(Tensor input, Tensor rois, int rows, int columns, int samples) -> Tensor");
}

TORCH_LIBRARY_IMPL(handwritten, CPU, m) {
  m.impl("my_relu", handwritten::relu_plain);
  m.impl("roi_align", handwritten::align_cpu);
}

TORCH_LIBRARY_IMPL(handwritten, Autograd, m) {
  m.impl("my_relu", handwritten::relu_autograd);
  m.impl("roi_align", handwritten::align_autograd);
}
