// What Python calls: an Entry runs its program, and returns MISS for calls that it does not fit.

#pragma once

#include <ATen/PythonTorchFunctionTLS.h>

#include <memory>
#include <utility>

#include "autograd.h"

namespace pullback {

PyObject* miss = Py_NewRef(Py_None);
PyTypeObject* entry_type = nullptr;

struct Entry {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<Program> program;
};

bool fits(const Program& program, PyObject* const* args, size_t count) {
  if (count != program.inputs.size() || !at::GradMode::is_enabled() || !is_plain_here() ||
      at::impl::torch_function_mode_enabled())
    return false;
  for (size_t i = 0; i < count; ++i) {
    if (!THPVariable_CheckExact(args[i])) return false;
    const at::Tensor& tensor = THPVariable_Unpack(args[i]);
    const Layout& layout = program.inputs[i];
    if (tensor.requires_grad() != program.needs[i] || !layout.is_kind_of(tensor) ||
        !layout.is_laid_out_as(tensor) || tensor._fw_grad(0).defined())
      return false;
  }
  return true;
}

PyObject* run(const std::shared_ptr<Program>& program, PyObject* const* args) {
  variable_list inputs, outputs;
  inputs.reserve(program->inputs.size());
  for (size_t i = 0; i < program->inputs.size(); ++i)
    inputs.push_back(THPVariable_Unpack(args[i]));
  {
    ReleaseGil released(program->forward.library != nullptr);
    outputs = Compiled::apply(&program, at::TensorList(inputs));
    inputs.clear();
  }
  return outputs.size() == 1 ? THPVariable_Wrap(std::move(outputs[0])) : tuple_of(outputs);
}

PyObject* entry_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<Program> program = reinterpret_cast<Entry*>(self)->program;
  const bool named = keywords != nullptr && PyTuple_GET_SIZE(keywords) > 0;
  if (!program || named || !fits(*program, args, PyVectorcall_NARGS(flags)))
    return Py_NewRef(miss);
  return run(program, args);
  END_HANDLE_TH_ERRORS
}

// A node that is alive holds the program, too: then Python's collector does not see through.
int entry_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const auto& program = reinterpret_cast<Entry*>(self)->program;
  return program && program.use_count() == 1 ? program->visit(visit, arg) : 0;
}

int entry_clear(PyObject* self) {
  auto& program = reinterpret_cast<Entry*>(self)->program;
  std::exchange(program, nullptr).reset();
  return 0;
}

void entry_free(PyObject* self) {
  PyObject_GC_UnTrack(self);
  entry_clear(self);
  reinterpret_cast<Entry*>(self)->program.~shared_ptr();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// From now on, this entry runs what the other one runs.
PyObject* entry_become(PyObject* self, PyObject* other) {
  if (Py_TYPE(other) != entry_type) {
    PyErr_SetString(PyExc_TypeError, "an entry becomes another entry");
    return nullptr;
  }
  auto theirs = reinterpret_cast<Entry*>(other)->program;
  auto& own = reinterpret_cast<Entry*>(self)->program;
  std::exchange(own, std::move(theirs)).reset();
  Py_RETURN_NONE;
}

// ---- making them ----

PyObject* set_miss(PyObject*, PyObject* object) {
  Py_XSETREF(miss, Py_NewRef(object));
  Py_RETURN_NONE;
}

PyObject* make_entry(PyObject*, PyObject* description) {
  HANDLE_TH_ERRORS
  auto program = program_of(py::cast<py::dict>(py::handle(description)));
  auto* self = reinterpret_cast<Entry*>(entry_type->tp_alloc(entry_type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = entry_call;
  new (&self->program) std::shared_ptr<Program>(std::move(program));
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

}  // namespace pullback
