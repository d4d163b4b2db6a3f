// What steps do on a GPU: make buffers, and launch kernels on the stream that PyTorch is on.
//
// The driver is found when the first kernel is launched: no header and no library of CUDA's is
// needed to build this, and none to run it on a CPU.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "gil.h"

namespace pullback {

// How a kernel is launched, as `launches.Launch` says.
struct Launching {
  std::shared_ptr<PyObject> owner;  // whose end is the end of the kernel
  void* function = nullptr;
  std::array<unsigned, 3> grid{1, 1, 1};
  unsigned threads = 0, shared = 0;
  std::vector<std::optional<int64_t>> numbers;  // the arguments; none for the address of a tensor
};

Launching launching_of(const py::dict& row) {
  Launching launching;
  launching.owner = shared_of(py::object(row["owner"]).ptr());
  launching.function = reinterpret_cast<void*>(py::cast<uintptr_t>(row["function"]));
  launching.grid = py::cast<std::array<unsigned, 3>>(row["grid"]);
  launching.threads = py::cast<unsigned>(row["threads"]);
  launching.shared = py::cast<unsigned>(row["shared"]);
  launching.numbers = py::cast<std::vector<std::optional<int64_t>>>(row["numbers"]);
  return launching;
}

// ---- the driver ----

constexpr int INVALID_CONTEXT = 201;  // this thread has not used the GPU yet

// A function of the driver's.
template <class Function>
Function* driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* symbol = library == nullptr ? nullptr : dlsym(library, name);
  TORCH_CHECK(symbol != nullptr, "the driver of the GPU (libcuda.so.1) has no ", name);
  return reinterpret_cast<Function*>(symbol);
}

using LaunchKernel = int(
    void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
    void**);

LaunchKernel* launch_kernel() {
  static LaunchKernel* const found = driver<LaunchKernel>("cuLaunchKernel");
  return found;
}

// Let this thread use what PyTorch uses on a GPU: setting the device does not, where it is set.
void enter_context(int number) {
  int device = 0;
  void* context = nullptr;
  int status = driver<int(int*, int)>("cuDeviceGet")(&device, number);
  if (status == 0) status = driver<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device);
  if (status == 0) status = driver<int(void*)>("cuCtxSetCurrent")(context);
  TORCH_CHECK(status == 0, "this thread cannot use the GPU: CUDA error ", status);
}

// ---- a GPU, for as long as a graph runs ----

struct Gpu {
  at::Device device;
  c10::DeviceGuard guard;
  void* stream;

  explicit Gpu(int64_t number)
      : device(at::kCUDA, static_cast<c10::DeviceIndex>(number)),
        guard(device),
        stream(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device).native_handle()) {}

  at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) const {
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(device));
  }

  void launch(const Launching& how, const std::vector<void*>& addresses) const {
    if (how.grid[0] == 0 || how.grid[1] == 0 || how.grid[2] == 0) return;
    std::vector<void*> values(how.numbers.size()), places(how.numbers.size());
    size_t next = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = how.numbers[i] ? reinterpret_cast<void*>(*how.numbers[i]) : addresses[next++];
      places[i] = &values[i];
    }
    const auto start = [&] {
      return launch_kernel()(
          how.function, how.grid[0], how.grid[1], how.grid[2], how.threads, 1, 1, how.shared,
          stream, places.data(), nullptr);
    };
    int status = start();
    if (status == INVALID_CONTEXT) {
      enter_context(device.index());
      status = start();
    }
    TORCH_CHECK(status == 0, "a kernel cannot be launched on the GPU: CUDA error ", status);
  }
};

}  // namespace pullback
