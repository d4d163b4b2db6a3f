// Halves, written by pullback from halves: yours to keep.
//
// Python:  torch.ops.load_library("libhalves.so"); torch.ops.emitted.halves(x)
// C++:     emitted::Halves::apply(x)

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
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

// The quotient of two sizes, rounded down as in Python.
c10::SymInt floor_div(const c10::SymInt& a, const c10::SymInt& b) {
  if (a.is_symbolic() || b.is_symbolic()) return a / b;
  const int64_t x = a.expect_int(), y = b.expect_int(), quotient = x / y;
  return quotient - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
}

}  // namespace

// Saved for backward:
//   x  an input
struct Halves : public torch::autograd::Function<Halves> {
  // Compiled autograd may trace through backward.
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const at::Tensor& x) {
    TORCH_CHECK(x.is_floating_point(), "Halves: x must be of a floating-point dtype, got ",
        x.scalar_type());
    TORCH_CHECK(x.dim() == 2, "Halves: x must have 2 dimensions, got ", x.dim());
    TORCH_CHECK(x.sym_size(1) >= 2, "Halves: size 1 of x must be at least 2, got ",
        x.sym_size(1));
    at::AutoDispatchBelowADInplaceOrView guard;
    auto parts = x.split_symint(floor_div(x.sym_size(1) + 1, 2), -1);
    TORCH_CHECK(parts.size() == 2, "Halves: split of x must give 2 tensors, got ",
        parts.size());
    auto first = parts.at(0);
    auto out0 = first * parts.at(1).sigmoid();
    auto copy = parts.at(1).clone();  // an op must not return an alias
    ctx->save_for_backward({x});
    return {out0, copy};
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = ctx->get_saved_variables();
    const auto& x = saved[0];
    const auto& grad_out0 = cotangents[0];
    const auto& grad_second = cotangents[1];
    // Ops that nobody will differentiate need not pass through autograd.
    std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
    if (!at::GradMode::is_enabled()) guard.emplace();
    auto parts = x.split_symint(floor_div(x.sym_size(1) + 1, 2), -1);
    TORCH_CHECK(parts.size() == 2, "Halves: split of x must give 2 tensors, got ",
        parts.size());
    auto first = parts.at(0);
    auto second = parts.at(1);
    auto sigmoid_second = second.sigmoid();
    auto grad_first = grad_out0 * sigmoid_second;
    auto g_scaled = grad_out0 * first * (number(1, x) - sigmoid_second) * sigmoid_second;
    auto grad_second_total = grad_second + g_scaled;
    auto grad_x = at::cat(std::vector<at::Tensor>{grad_first, grad_second_total}, 1);
    return {grad_x};
  }
};

std::tuple<at::Tensor, at::Tensor> halves_autograd(const at::Tensor& x) {
  if (!c10::impl::tls_is_dispatch_keyset_excluded(c10::autocast_dispatch_keyset)) {
    // The dtypes inside are those of the program without autocast.
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return halves_autograd(x);
  }
  auto op_results = Halves::apply(x);
  return {op_results[0], op_results[1]};
}

// The same without a history, for every device and for tensors without values.
std::tuple<at::Tensor, at::Tensor> halves_plain(const at::Tensor& x) {
  at::AutoGradMode off(false);
  return halves_autograd(x);
}

}  // namespace emitted

TORCH_LIBRARY_FRAGMENT(emitted, m) {
  m.def("halves(Tensor x) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(emitted, Autograd, m) {
  m.impl("halves", emitted::halves_autograd);
}

TORCH_LIBRARY_IMPL(emitted, CompositeExplicitAutograd, m) {
  m.impl("halves", emitted::halves_plain);
}
