// MyFunction, written by pullback from MyFunction: yours to keep.
//
// Python:  torch.ops.load_library("libmy_function.so"); torch.ops.emitted.my_function(x)
// C++:     emitted::MyFunction::apply(x)

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <vector>

namespace emitted {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// `x *= n` in place, with the integer n in `saved_data`, as a C++ Function keeps it.
//
// Written for the plain arguments 3, in this order.
//
// Saved for backward:
//   nothing
struct MyFunction : public torch::autograd::Function<MyFunction> {
  // Compiled autograd may trace through backward.
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, at::Tensor x) {
    TORCH_CHECK(x.is_floating_point(), "MyFunction: x must be of a floating-point dtype, got ",
        x.scalar_type());
    std::optional<at::AutoDispatchBelowADInplaceOrView> guard(std::in_place);
    auto x_1 = x * 3;
    guard.reset();
    x.copy_(x_1);
    ctx->mark_dirty({x});
    return x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    const auto& grad_x_1 = cotangents[0];
    // Ops that nobody will differentiate need not pass through autograd.
    std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
    if (!at::GradMode::is_enabled()) guard.emplace();
    auto grad_x = grad_x_1 * 3;
    return {grad_x};
  }
};

at::Tensor my_function_autograd(at::Tensor x) {
  return MyFunction::apply(x);
}

// The same without a history, for every device and for tensors without values.
at::Tensor my_function_plain(at::Tensor x) {
  at::AutoGradMode off(false);
  return my_function_autograd(x);
}

}  // namespace emitted

TORCH_LIBRARY_FRAGMENT(emitted, m) {
  m.def("my_function(Tensor(a!) x) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(emitted, Autograd, m) {
  m.impl("my_function", emitted::my_function_autograd);
}

TORCH_LIBRARY_IMPL(emitted, CompositeExplicitAutograd, m) {
  m.impl("my_function", emitted::my_function_plain);
}
