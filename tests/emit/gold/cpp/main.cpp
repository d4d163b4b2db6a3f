// Calls the op emitted::my_relu from C++ alone, forward and backward.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

#include <iostream>
#include <tuple>

int main() {
  at::manual_seed(0);
  auto x = (at::rand({5}, at::kDouble) * (1.5409961082440433 - (-2.1787893820745574)) + (-2.1787893820745574)).detach().requires_grad_();

  using Op = at::Tensor(const at::Tensor& x);
  auto op = c10::Dispatcher::singleton()
                .findSchemaOrThrow("emitted::my_relu", "")
                .typed<Op>();
  auto out = op.call(x);
  std::cout << "out: " << out.sizes() << " sum "
            << out.sum().to(at::kDouble).item<double>() << std::endl;

  auto gradients = torch::autograd::grad(
      {out}, {x},
      {at::ones_like(out)}, std::nullopt, false, /*allow_unused=*/true);
  if (gradients[0].defined())
    std::cout << "grad_x: " << gradients[0].sizes() << " sum "
              << gradients[0].sum().to(at::kDouble).item<double>() << std::endl;
  return 0;
}
