// Steps: a graph that Inductor compiled as kernels and as Python that calls them, read from that
// Python (`lowering/wrapper.py`): one step after another, without Python, on a CPU or on one GPU.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/inductor_ops.h>

#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu.h"
#include "values.h"

namespace pullback {

struct Step {
  enum Kind {
    Empty, View, Same, Cast, Zero, Drop, Kernel, Launch, Mm, Bmm, Addmm, Sum, Amin, Amax
  } kind;
  size_t to = 0;  // the register that it writes, or drops
  std::vector<size_t> from;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype = at::kFloat;
  int64_t offset = 0;
  void* kernel = nullptr;
  Launching launching;
  double alpha = 1, beta = 1;
};

constexpr size_t MOST_POINTERS = 48;  // that a kernel is called with

template <size_t... I>
void call_kernel(void* kernel, void** pointers, std::index_sequence<I...>) {
  using Function = void (*)(decltype(static_cast<void>(I), static_cast<void*>(nullptr))...);
  reinterpret_cast<Function>(kernel)(pointers[I]...);
}

template <size_t Count>
void call_kernel_of(void* kernel, void** pointers) {
  call_kernel(kernel, pointers, std::make_index_sequence<Count>());
}

template <size_t... Counts>
constexpr auto kernel_callers(std::index_sequence<Counts...>) {
  return std::array<void (*)(void*, void**), sizeof...(Counts)>{call_kernel_of<Counts>...};
}

constexpr auto KERNEL_CALLERS = kernel_callers(std::make_index_sequence<MOST_POINTERS + 1>());

// Several threads may run it at once.
struct Steps {
  int64_t device = -1;  // the number of a GPU
  std::vector<Step> steps;
  size_t register_count = 0;
  std::vector<std::pair<size_t, at::Tensor>> constants;
  std::vector<int64_t> made;  // a register, or -1 for nothing

  variable_list run(variable_list&& given) const {
    variable_list registers(std::move(given));
    registers.resize(register_count);
    for (const auto& [place, tensor] : constants) registers[place] = tensor;
    if (device < 0) {
      for (const Step& step : steps) take(step, registers, nullptr);
    } else {
      const Gpu gpu(device);
      for (const Step& step : steps) take(step, registers, &gpu);
    }
    variable_list results;
    results.reserve(made.size());
    for (int64_t place : made) results.push_back(place < 0 ? at::Tensor() : registers[place]);
    return results;
  }

  static void take(const Step& step, variable_list& registers, const Gpu* gpu) {
    const auto from = [&](size_t i) -> const at::Tensor& { return registers[step.from[i]]; };
    at::Tensor& to = registers[step.to];
    switch (step.kind) {
      case Step::Empty:
        to = gpu == nullptr
            ? at::Tensor(at::detail::empty_strided_cpu(step.sizes, step.strides, step.dtype))
            : gpu->empty(step.sizes, step.strides, step.dtype);
        break;
      case Step::View:
        to = torch::inductor::_reinterpret_tensor(from(0), step.sizes, step.strides, step.offset);
        break;
      case Step::Same:
        to = from(0);
        break;
      case Step::Cast:
        to = from(0).to(step.dtype);
        break;
      case Step::Zero:
        to.zero_();
        break;
      case Step::Drop:
        to.reset();
        break;
      case Step::Kernel: {
        std::array<void*, MOST_POINTERS> pointers;
        for (size_t i = 0; i < step.from.size(); ++i)
          pointers[i] = const_cast<void*>(from(i).const_data_ptr());
        KERNEL_CALLERS[step.from.size()](step.kernel, pointers.data());
        break;
      }
      case Step::Launch: {
        std::vector<void*> addresses(step.from.size());
        for (size_t i = 0; i < step.from.size(); ++i)
          addresses[i] = const_cast<void*>(from(i).const_data_ptr());
        gpu->launch(step.launching, addresses);
        break;
      }
      case Step::Mm:
        at::mm_out(to, from(0), from(1));
        break;
      case Step::Bmm:
        at::bmm_out(to, from(0), from(1));
        break;
      case Step::Addmm:
        at::addmm_out(to, from(0), from(1), from(2), step.beta, step.alpha);
        break;
      case Step::Sum:
        to = at::sum(from(0), 0);
        break;
      case Step::Amin:
        to = at::amin(from(0), 0);
        break;
      case Step::Amax:
        to = at::amax(from(0), 0);
        break;
    }
  }
};

// ---- as Python describes them ----

Step::Kind step_kind(const std::string& word) {
  static const std::unordered_map<std::string, Step::Kind> kinds{
      {"empty", Step::Empty}, {"view", Step::View},     {"same", Step::Same},
      {"cast", Step::Cast},   {"zero", Step::Zero},     {"drop", Step::Drop},
      {"kernel", Step::Kernel}, {"launch", Step::Launch}, {"mm", Step::Mm},
      {"bmm", Step::Bmm},     {"addmm", Step::Addmm},   {"sum", Step::Sum},
      {"amin", Step::Amin},   {"amax", Step::Amax}};
  return kinds.at(word);
}

void* kernel_at(const std::string& path, const std::string& name) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // for as long as the process lives
  void* kernel = library == nullptr ? nullptr : dlsym(library, name.c_str());
  TORCH_CHECK_VALUE(kernel != nullptr, "no kernel called ", name, " in ", path);
  return kernel;
}

Step step_of(const py::dict& row) {
  Step step{step_kind(py::cast<std::string>(row["kind"]))};
  step.to = py::cast<size_t>(row["to"]);
  step.from = py::cast<std::vector<size_t>>(row["from"]);
  if (row.contains("sizes")) {
    step.sizes = py::cast<std::vector<int64_t>>(row["sizes"]);
    step.strides = py::cast<std::vector<int64_t>>(row["strides"]);
  }
  if (row.contains("dtype")) step.dtype = py::cast<at::ScalarType>(row["dtype"]);
  if (row.contains("offset")) step.offset = py::cast<int64_t>(row["offset"]);
  if (row.contains("alpha")) step.alpha = py::cast<double>(row["alpha"]);
  if (row.contains("beta")) step.beta = py::cast<double>(row["beta"]);
  if (step.kind == Step::Launch) step.launching = launching_of(row);
  if (step.kind != Step::Kernel) return step;
  TORCH_CHECK_VALUE(step.from.size() <= MOST_POINTERS, "a kernel of too many pointers");
  step.kernel = kernel_at(py::cast<std::string>(row["path"]), py::cast<std::string>(row["name"]));
  return step;
}

}  // namespace pullback
