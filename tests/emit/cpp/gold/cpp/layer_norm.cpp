// LayerNorm, written by pullback from LayerNorm: yours to keep.
//
// Python:  torch.ops.load_library("liblayer_norm.so"); torch.ops.emitted.layer_norm(x, weight, bias, eps)
// C++:     emitted::LayerNorm::apply(x, weight, bias, eps)

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <vector>

namespace emitted {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// A number in the place of a tensor: it does not decide the dtype of a result.
at::Tensor number(const at::Scalar& value, at::ScalarType dtype) {
  if (value.isSymbolic()) return at::scalar_tensor(value, dtype);
  auto made = at::detail::scalar_tensor_static(value, dtype, at::kCPU);
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// The same beside another tensor. In its dtype it need not be converted at every use; lower
// precisions compute with the number itself, and what Python watches takes no other one.
at::Tensor number(const at::Scalar& value, const at::Tensor& other) {
  const bool is_watched = other.key_set().has(c10::DispatchKey::Python) ||
      c10::impl::TorchDispatchModeTLS::any_modes_set();
  const bool is_direct = other.scalar_type() == at::kFloat && !is_watched;
  return number(value, is_direct ? at::kFloat : at::kDouble);
}

// The dtype for inputs of several dtypes, which come out of ops under autocast.
at::ScalarType widest(at::ArrayRef<at::Tensor> given) {
  auto dtype = at::ScalarType::Undefined;
  for (const auto& one : given) {
    if (!one.defined()) continue;
    const auto own = one.scalar_type();
    dtype = dtype == at::ScalarType::Undefined ? own : c10::promoteTypes(dtype, own);
  }
  return dtype;
}

}  // namespace

// Saved for backward:
//   weight  an input
//   rstd    computed in forward
//   normed  computed in forward
struct LayerNorm : public torch::autograd::Function<LayerNorm> {
  // Compiled autograd may trace through backward.
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
      const at::Tensor& weight, const at::Tensor& bias, double eps) {
    TORCH_CHECK(x.is_floating_point(), "LayerNorm: x must be of a floating-point dtype, got ",
        x.scalar_type());
    TORCH_CHECK(weight.scalar_type() == x.scalar_type(),
        "LayerNorm: weight must have the dtype of x");
    TORCH_CHECK(bias.scalar_type() == x.scalar_type(),
        "LayerNorm: bias must have the dtype of x");
    TORCH_CHECK(x.dim() == 2, "LayerNorm: x must have 2 dimensions, got ", x.dim());
    TORCH_CHECK(weight.dim() == 1, "LayerNorm: weight must have 1 dimension, got ",
        weight.dim());
    TORCH_CHECK(bias.dim() == 1, "LayerNorm: bias must have 1 dimension, got ", bias.dim());
    TORCH_CHECK(weight.sym_size(0) == x.sym_size(1),
        "LayerNorm: size 0 of weight must be that of size 1 of x");
    TORCH_CHECK(bias.sym_size(0) == x.sym_size(1),
        "LayerNorm: size 0 of bias must be that of size 1 of x");
    at::AutoDispatchBelowADInplaceOrView guard;
    auto centred = x - x.mean({-1}, true);
    auto rstd = ((centred * centred).mean({-1}, true) + number(eps, x)).rsqrt();
    auto normed = centred * rstd;
    auto out = normed * weight + bias;
    ctx->save_for_backward({weight, rstd, normed});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    TORCH_CHECK(!at::GradMode::is_enabled(),
        "layer_norm: backward reads intermediates, so there is no second derivative (create_graph=True)");
    const auto saved = ctx->get_saved_variables();
    const auto& weight = saved[0];
    const auto& rstd = saved[1];
    const auto& normed = saved[2];
    const auto& grad_out = cotangents[0];
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool needs_x = ctx->needs_input_grad(0);
    const bool needs_weight = ctx->needs_input_grad(1);
    const bool needs_bias = ctx->needs_input_grad(2);
    at::Tensor grad_x;
    if (needs_x) {
      auto scaled = grad_out * weight;
      auto mean = scaled.mean({-1}, true);
      auto projected = normed * (scaled * normed).mean({-1}, true);
      grad_x = rstd * (scaled - mean - projected);
    }
    at::Tensor grad_weight;
    if (needs_weight) {
      grad_weight = (grad_out * normed).sum(at::IntArrayRef{0});
    }
    at::Tensor grad_bias;
    if (needs_bias) {
      grad_bias = grad_out.sum(at::IntArrayRef{0});
    }
    return {grad_x, grad_weight, grad_bias, at::Tensor()};
  }
};

at::Tensor layer_norm_autograd(const at::Tensor& x, const at::Tensor& weight,
    const at::Tensor& bias, double eps) {
  if (!c10::impl::tls_is_dispatch_keyset_excluded(c10::autocast_dispatch_keyset)) {
    // The dtypes inside are those of the program without autocast.
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto cast_dtype = widest({x, weight, bias});
    return layer_norm_autograd(x.to(cast_dtype), weight.to(cast_dtype), bias.to(cast_dtype),
        eps);
  }
  return LayerNorm::apply(x, weight, bias, eps);
}

// The same without a history, for every device and for tensors without values.
at::Tensor layer_norm_plain(const at::Tensor& x, const at::Tensor& weight,
    const at::Tensor& bias, double eps) {
  at::AutoGradMode off(false);
  return layer_norm_autograd(x, weight, bias, eps);
}

}  // namespace emitted

TORCH_LIBRARY_FRAGMENT(emitted, m) {
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps=1e-05) -> Tensor");
}

TORCH_LIBRARY_IMPL(emitted, Autograd, m) {
  m.impl("layer_norm", emitted::layer_norm_autograd);
}

TORCH_LIBRARY_IMPL(emitted, CompositeExplicitAutograd, m) {
  m.impl("layer_norm", emitted::layer_norm_plain);
}
