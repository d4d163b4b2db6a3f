// MyReLU, written by pullback from MyReLU: yours to keep.
//
// Python:  torch.ops.load_library("libmy_relu.so"); torch.ops.emitted.my_relu(x)
// C++:     emitted::MyReLU::apply(x)

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <vector>

namespace emitted {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// A number as a tensor of the dtype of another, which it is compared with or chosen beside.
at::Tensor scalar(const at::Scalar& value, const at::Tensor& other) {
  const auto dtype = other.scalar_type();
  const bool is_direct = dtype == at::kFloat || dtype == at::kDouble;
  const auto made = at::scalar_tensor(value, is_direct ? dtype : at::kDouble);
  return is_direct ? made : made.to(dtype);
}

}  // namespace

// `max(x, 0)`, with forward mode and a batching rule.
//
// Saved for backward:
//   out  an output
struct MyReLU : public torch::autograd::Function<MyReLU> {
  // Compiled autograd may trace through backward.
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    TORCH_CHECK(x.is_floating_point(), "MyReLU: x must be of a floating-point dtype, got ",
        x.scalar_type());
    at::AutoDispatchBelowADInplaceOrView guard;
    auto out = x.clamp(std::optional<at::Scalar>(0));
    ctx->save_for_backward({out});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = ctx->get_saved_variables();
    const auto& out = saved[0];
    const auto& grad_out = cotangents[0];
    // Ops that nobody will differentiate need not pass through autograd.
    std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
    if (!at::GradMode::is_enabled()) guard.emplace();
    auto grad_x = grad_out.masked_fill(out <= scalar(0, out), 0);
    return {grad_x};
  }
};

at::Tensor my_relu_autograd(const at::Tensor& x) {
  if (!c10::impl::tls_is_dispatch_keyset_excluded(c10::autocast_dispatch_keyset)) {
    // The dtypes inside are those of the program without autocast.
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return my_relu_autograd(x);
  }
  return MyReLU::apply(x);
}

// The same without a history, for every device and for tensors without values.
at::Tensor my_relu_plain(const at::Tensor& x) {
  at::AutoGradMode off(false);
  return my_relu_autograd(x);
}

}  // namespace emitted

TORCH_LIBRARY_FRAGMENT(emitted, m) {
  m.def("my_relu(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(emitted, Autograd, m) {
  m.impl("my_relu", emitted::my_relu_autograd);
}

TORCH_LIBRARY_IMPL(emitted, CompositeExplicitAutograd, m) {
  m.impl("my_relu", emitted::my_relu_plain);
}
