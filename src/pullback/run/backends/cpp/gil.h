// Python's lock, its errors, and references to its objects.

#pragma once

#include <Python.h>

#include <torch/csrc/Exceptions.h>

#include <memory>

namespace pullback {

struct HoldGil {
  HoldGil() : state(PyGILState_Ensure()) {}
  ~HoldGil() { PyGILState_Release(state); }
  PyGILState_STATE state;
};

struct ReleaseGil {
  explicit ReleaseGil(bool released) : state(released ? PyEval_SaveThread() : nullptr) {}
  ~ReleaseGil() {
    if (state != nullptr) PyEval_RestoreThread(state);
  }
  PyThreadState* state;
};

[[noreturn]] void raise_python_error() {
  python_error error;
  error.persist();
  throw error;
}

// A reference that this object owns, to be used with the GIL held.
struct Owned {
  explicit Owned(PyObject* object) : object(object) {
    if (object == nullptr) raise_python_error();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_DECREF(object); }
  PyObject* object;
};

// A reference that may end on a thread without the GIL, or after Python.
std::shared_ptr<PyObject> shared_of(PyObject* object) {
  return {Py_NewRef(object), [](PyObject* owned) {
            if (!Py_IsInitialized()) return;
            const HoldGil gil;
            Py_DECREF(owned);
          }};
}

}  // namespace pullback
