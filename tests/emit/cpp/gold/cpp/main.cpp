// Calls the op emitted::my_relu from C++ alone, forward and backward.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <tuple>

// Numbers between two others, the same on every machine.
at::Tensor spread(at::IntArrayRef sizes, double low, double high) {
  const auto steps = at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.6180339887498949;
  return ((steps - steps.floor()) * (high - low) + low).reshape(sizes);
}

bool is_right = true;

// Prints a result, and compares two sums over it with those that the program gave.
void compare(
    const char* name, const at::Tensor& result, double sum, double weighted, double bound) {
  const auto real = result.is_complex() ? at::view_as_real(result) : result;
  const auto flat = real.to(at::kDouble).flatten();
  const auto found = flat.sum().item<double>();
  const auto apart = std::abs(found - sum) +
      std::abs((flat * spread(flat.sizes(), 0.5, 1.5)).sum().item<double>() - weighted);
  const bool is_same = apart <= bound;
  std::cout << name << ": " << result.sizes() << " sum " << found
            << (is_same ? ", as in the program" : ", and not as in the program: ");
  if (!is_same) std::cout << sum;
  std::cout << std::endl;
  is_right = is_right && is_same;
}

int main() {
  auto x = at::tensor(std::vector<double>{1.5409961082440433, -0.2934289057609464,
    -2.1787893820745574, 0.5684312772806678,
    -1.084522342424021}).to(at::kDouble).reshape({5}).requires_grad_();

  using Op = at::Tensor(const at::Tensor& x);
  auto op = c10::Dispatcher::singleton()
                .findSchemaOrThrow("emitted::my_relu", "")
                .typed<Op>();
  auto out = op.call(x);
  compare("out", out, 2.109427385524711, 1.5402119643655936, 2.110427385524711e-09);

  auto gradients = torch::autograd::grad(
      {out}, {x},
      {at::ones_like(out)}, std::nullopt, false, /*allow_unused=*/true);
  if (gradients[0].defined())
    compare("grad_x", gradients[0], 2.0, 1.8541019662496847, 2.001e-09);
  return is_right ? 0 : 1;
}
