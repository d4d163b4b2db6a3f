// Hand-written C++ Functions for the tests of `pullback check --load`: one sound, three not.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// ---- sound: x * sigmoid(beta * x) ----

struct Swish : public Function<Swish> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double beta) {
    ctx->save_for_backward({x});
    ctx->saved_data["beta"] = beta;
    return x * at::sigmoid(beta * x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    auto x = ctx->get_saved_variables()[0];
    auto beta = ctx->saved_data["beta"].toDouble();
    auto gate = at::sigmoid(beta * x);
    return {cotangents[0] * (gate + beta * x * gate * (1 - gate)), at::Tensor()};
  }
};

at::Tensor swish(const at::Tensor& x, double beta) {
  return Swish::apply(x, beta);
}

// ---- wrong factor: the 2 of the power rule is missing ----

struct Square : public Function<Square> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    auto x = ctx->get_saved_variables()[0];
    return {cotangents[0] * x};
  }
};

at::Tensor square(const at::Tensor& x) {
  return Square::apply(x);
}

// ---- ignores strides: the cotangent is read as if it were contiguous ----

at::Tensor times(const at::Tensor& left, const at::Tensor& right) {
  auto result = at::empty_like(left, at::MemoryFormat::Contiguous);
  AT_DISPATCH_FLOATING_TYPES(left.scalar_type(), "times", [&] {
    const auto* a = left.data_ptr<scalar_t>();
    const auto* b = right.data_ptr<scalar_t>();
    auto* out = result.data_ptr<scalar_t>();
    for (int64_t i = 0; i < result.numel(); ++i) {
      out[i] = a[i] * b[i];
    }
  });
  return result;
}

struct Product : public Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    TORCH_CHECK(a.sizes() == b.sizes(), "a and b must have one shape");
    auto dense_a = a.contiguous();
    auto dense_b = b.contiguous();
    ctx->save_for_backward({dense_a, dense_b});
    return times(dense_a, dense_b);
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "product has no second derivative");
    auto saved = ctx->get_saved_variables();
    return {times(cotangents[0], saved[1]), times(cotangents[0], saved[0])};
  }
};

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return Product::apply(a, b);
}

// ---- leaks: the output is kept in saved_data, and the output keeps the node ----

struct Gate : public Function<Gate> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    auto y = at::sigmoid(x);
    ctx->saved_data["y"] = y;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    auto y = ctx->saved_data["y"].toTensor();
    return {cotangents[0] * y * (1 - y)};
  }
};

at::Tensor gate(const at::Tensor& x) {
  return Gate::apply(x);
}

TORCH_LIBRARY(my_ops, m) {
  m.def("swish(Tensor x, float beta=1.0) -> Tensor", &swish);
  m.def("square(Tensor x) -> Tensor", &square);
  m.def("product(Tensor a, Tensor b) -> Tensor", &product);
  m.def("gate(Tensor x) -> Tensor", &gate);
}
