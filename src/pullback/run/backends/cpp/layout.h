// What kind of tensor a compiled graph takes, and bringing one into the layout that it reads.

#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>
#include <vector>

namespace pullback {

// The keys of a plain tensor: no subclass, mode, wrapper, inference tensor or lazy conjugate.
c10::DispatchKeySet plain_keys(at::Device device) {
  return at::empty({0}, at::TensorOptions().device(device)).unsafeGetTensorImpl()->key_set();
}

// Whether nothing stands between a call and its kernels: no dispatch mode, functorch level,
// autocast, tracer or inference mode; each of these changes the keys of the thread. Other keys
// than those of autocast and autograd may be left out: plain tensors have none of them.
bool is_plain_here() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_ == c10::default_included_set &&
      keys.excluded_.has_all(c10::default_excluded_set) &&
      (keys.excluded_ & c10::autograd_dispatch_keyset_with_ADInplaceOrView).empty();
}

struct Layout {
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes, strides;
  c10::DispatchKeySet keys;
  uintptr_t alignment = 1;  // of the address, in bytes

  bool is_kind_of(const at::Tensor& tensor) const {
    return tensor.unsafeGetTensorImpl()->key_set() == keys && tensor.scalar_type() == dtype &&
        tensor.device() == device && tensor.sizes() == at::IntArrayRef(sizes);
  }

  bool is_laid_out_as(const at::Tensor& tensor) const {
    return has_strides_of(tensor) &&
        (alignment == 1 ||
         reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % alignment == 0);
  }

  // The stride of a dimension of size one is never used.
  bool has_strides_of(const at::Tensor& tensor) const {
    const auto own = tensor.strides();
    for (size_t d = 0; d < sizes.size(); ++d)
      if (own[d] != strides[d] && sizes[d] > 1 && tensor.numel() > 0) return false;
    return true;
  }

  // Whether an element has several places: such a layout cannot be written to.
  bool overlaps() const {
    for (size_t d = 0; d < sizes.size(); ++d)
      if (strides[d] == 0 && sizes[d] > 1) return true;
    return false;
  }

  // Bring `tensor` into this layout, by a copy if need be; false if it cannot be brought there.
  bool take(at::Tensor& tensor) const {
    if (!tensor.defined() || !is_kind_of(tensor)) return false;
    if (is_laid_out_as(tensor)) return true;
    if (overlaps()) return false;
    at::Tensor copy = at::empty_strided(sizes, strides, tensor.options());
    copy.copy_(tensor);
    tensor = std::move(copy);
    return true;
  }
};

Layout layout_of(const py::handle& row) {
  const auto fields = py::cast<py::tuple>(row);
  Layout layout{
      py::cast<at::ScalarType>(fields[0]),
      py::cast<at::Device>(fields[1]),
      py::cast<std::vector<int64_t>>(fields[2]),
      py::cast<std::vector<int64_t>>(fields[3]),
      {}};
  layout.keys = plain_keys(layout.device);
  return layout;
}

std::vector<Layout> layouts_of(const py::handle& rows) {
  std::vector<Layout> layouts;
  for (const auto& row : py::cast<py::list>(rows)) layouts.push_back(layout_of(row));
  return layouts;
}

// Code for a GPU reads several numbers at once.
void align(std::vector<Layout>& layouts) {
  for (Layout& layout : layouts)
    if (!layout.device.is_cpu()) layout.alignment = 16;
}

}  // namespace pullback
