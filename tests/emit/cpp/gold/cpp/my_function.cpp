// MyFunction, written by pullback from MyFunction: yours to keep.
//
// Python:  torch.ops.load_library("libmy_function.so"); torch.ops.emitted.my_function(x, n)
// C++:     emitted::MyFunction::apply(x, n)

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
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

}  // namespace

// `x *= n` in place, with the integer n in `saved_data`, as a C++ Function keeps it.
//
// Saved for backward:
//   n  an argument
struct MyFunction : public torch::autograd::Function<MyFunction> {
  // Compiled autograd may trace through backward.
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, at::Tensor x, int64_t n) {
    TORCH_CHECK(x.is_floating_point(), "MyFunction: x must be of a floating-point dtype, got ",
        x.scalar_type());
    std::optional<at::AutoDispatchBelowADInplaceOrView> guard(std::in_place);
    auto x_1 = x * number(n, x);
    guard.reset();
    x.copy_(x_1);
    ctx->mark_dirty({x});
    ctx->saved_data["n"] = n;
    return x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto n = ctx->saved_data["n"].toInt();
    const auto& grad_x_1 = cotangents[0];
    // Ops that nobody will differentiate need not pass through autograd.
    std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
    if (!at::GradMode::is_enabled()) guard.emplace();
    auto grad_x = grad_x_1 * number(n, grad_x_1);
    return {grad_x, at::Tensor()};
  }
};

at::Tensor my_function_autograd(at::Tensor x, int64_t n) {
  if (!c10::impl::tls_is_dispatch_keyset_excluded(c10::autocast_dispatch_keyset)) {
    // The dtypes inside are those of the program without autocast.
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return my_function_autograd(x, n);
  }
  return MyFunction::apply(x, n);
}

// The same without a history, for every device and for tensors without values.
at::Tensor my_function_plain(at::Tensor x, int64_t n) {
  at::AutoGradMode off(false);
  return my_function_autograd(x, n);
}

}  // namespace emitted

TORCH_LIBRARY_FRAGMENT(emitted, m) {
  m.def("my_function(Tensor(a!) x, int n=3) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(emitted, Autograd, m) {
  m.impl("my_function", emitted::my_function_autograd);
}

TORCH_LIBRARY_IMPL(emitted, CompositeExplicitAutograd, m) {
  m.impl("my_function", emitted::my_function_plain);
}
