// What a compiled graph takes and makes: tensors and numbers, here and in Python.

#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>
#include <vector>

#include "gil.h"

namespace pullback {

using torch::autograd::variable_list;

at::Tensor tensor_of(PyObject* value) {
  if (value == Py_None) return {};
  TORCH_CHECK_TYPE(
      THPVariable_Check(value), "a compiled graph must return tensors, and returned ",
      Py_TYPE(value)->tp_name);
  return THPVariable_Unpack(value);
}

bool is_number(PyObject* value) { return PyLong_Check(value) || PyFloat_Check(value); }

c10::IValue number_of(PyObject* value) {
  if (PyBool_Check(value)) return value == Py_True;
  if (PyFloat_Check(value)) return PyFloat_AsDouble(value);
  const auto number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred()) raise_python_error();
  return static_cast<int64_t>(number);
}

PyObject* python_of(const c10::IValue& number) {
  if (number.isBool()) return PyBool_FromLong(number.toBool());
  if (number.isDouble()) return PyFloat_FromDouble(number.toDouble());
  return PyLong_FromLongLong(number.toInt());
}

PyObject* tuple_of(const variable_list& tensors) {
  Owned row(PyTuple_New(static_cast<Py_ssize_t>(tensors.size())));
  for (size_t i = 0; i < tensors.size(); ++i)
    PyTuple_SET_ITEM(row.object, i, THPVariable_Wrap(tensors[i]));
  return Py_NewRef(row.object);
}

// What a graph takes or makes: tensors, undefined in the place of a number, and the numbers.
struct Values {
  variable_list tensors;
  std::vector<std::pair<size_t, c10::IValue>> numbers;

  const at::Tensor& tensor(size_t place) const {
    TORCH_CHECK(
        place < tensors.size() && tensors[place].defined(),
        "a compiled graph must make a tensor as value ", place);
    return tensors[place];
  }

  const c10::IValue& number(size_t place) const {
    for (const auto& [at, value] : numbers)
      if (at == place) return value;
    TORCH_CHECK(false, "a compiled graph must make a number as value ", place);
  }
};

PyObject* list_of(Values&& values) {
  Owned list(PyList_New(static_cast<Py_ssize_t>(values.tensors.size())));
  for (size_t i = 0; i < values.tensors.size(); ++i)
    if (values.tensors[i].defined())
      PyList_SET_ITEM(list.object, i, THPVariable_Wrap(std::move(values.tensors[i])));
  for (const auto& [at, value] : values.numbers)
    PyList_SET_ITEM(list.object, at, Py_NewRef(Owned(python_of(value)).object));
  for (size_t i = 0; i < values.tensors.size(); ++i)
    if (PyList_GET_ITEM(list.object, i) == nullptr)
      PyList_SET_ITEM(list.object, i, Py_NewRef(Py_None));
  return Py_NewRef(list.object);
}

Values values_of(PyObject* row) {
  Owned fast(PySequence_Fast(row, "a compiled graph takes and makes a row of values"));
  PyObject** items = PySequence_Fast_ITEMS(fast.object);
  Values values;
  values.tensors.resize(PySequence_Fast_GET_SIZE(fast.object));
  for (size_t i = 0; i < values.tensors.size(); ++i) {
    if (is_number(items[i]))
      values.numbers.emplace_back(i, number_of(items[i]));
    else
      values.tensors[i] = tensor_of(items[i]);
  }
  return values;
}

}  // namespace pullback
