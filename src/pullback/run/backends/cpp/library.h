// Compiled graphs that can be called: a Library, which runs without Python, or a Python callable.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "steps.h"

namespace pullback {

// A graph, and where all that it is asked for comes from.
struct Library {
  struct Result {
    enum Kind { Made, Given, Number, Nothing } kind;
    size_t place;
    c10::IValue number;
  };

  std::shared_ptr<const Steps> graph;
  std::vector<size_t> taken;   // those of its arguments that are tensors
  std::vector<size_t> reused;  // those whose memory it writes over
  std::vector<Result> results;

  // What it takes, it lets go of as soon as the graph has read it.
  Values run(variable_list&& row) const {
    Values values;
    values.tensors.resize(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const Result& result = results[i];
      if (result.kind == Result::Number) values.numbers.emplace_back(i, result.number);
      if (result.kind == Result::Given) values.tensors[i] = row.at(result.place);
    }
    variable_list given;
    given.reserve(taken.size());
    for (size_t place : taken) given.push_back(std::move(row.at(place)));
    const variable_list made = graph->run(std::move(given));
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].kind == Result::Made) values.tensors[i] = made.at(results[i].place);
    return values;
  }
};

// ---- Library, in Python ----

PyTypeObject* library_type = nullptr;

struct LibraryObject {
  PyObject_HEAD
  std::shared_ptr<Library> library;
};

void library_free(PyObject* self) {
  reinterpret_cast<LibraryObject*>(self)->library.~shared_ptr();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* library_object(std::shared_ptr<Library> library) {
  auto* self = reinterpret_cast<LibraryObject*>(library_type->tp_alloc(library_type, 0));
  if (self == nullptr) return nullptr;
  new (&self->library) std::shared_ptr<Library>(std::move(library));
  return reinterpret_cast<PyObject*>(self);
}

// A library takes one list of values, as the graph does, and gives a list of them.
PyObject* library_call(PyObject* self, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject* row = nullptr;
  if (!PyArg_ParseTuple(args, "O", &row)) return nullptr;
  Values made;
  {
    Values given = values_of(row);
    const auto library = reinterpret_cast<LibraryObject*>(self)->library;
    ReleaseGil released(true);
    const at::NoGradGuard below;
    made = library->run(std::move(given.tensors));
  }
  return list_of(std::move(made));
  END_HANDLE_TH_ERRORS
}

// ---- making them ----

Library::Result result_of(const py::handle& row) {
  const auto fields = py::cast<py::tuple>(row);
  const auto kind = py::cast<std::string>(fields[0]);
  if (kind == "number") return {Library::Result::Number, 0, number_of(py::object(fields[1]).ptr())};
  if (kind == "nothing") return {Library::Result::Nothing, 0, {}};
  return {
      kind == "made" ? Library::Result::Made : Library::Result::Given,
      py::cast<size_t>(fields[1]),
      {}};
}

// steps(device, reused, register_count, taken, steps, constants, made): a graph read step by step.
PyObject* make_steps(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  Py_ssize_t device = -1, count = 0;
  PyObject *reused = nullptr, *taken = nullptr, *steps = nullptr, *constants = nullptr, *made = nullptr;
  if (!PyArg_ParseTuple(args, "nOnOOOO", &device, &reused, &count, &taken, &steps, &constants, &made))
    return nullptr;
  auto graph = std::make_shared<Steps>();
  auto library = std::make_shared<Library>();
  graph->device = device;
  graph->register_count = count;
  for (const auto& row : py::cast<py::list>(py::handle(steps)))
    graph->steps.push_back(step_of(py::cast<py::dict>(row)));
  for (const auto& row : py::cast<py::list>(py::handle(constants))) {
    const auto pair = py::cast<py::tuple>(row);
    graph->constants.emplace_back(
        py::cast<size_t>(pair[0]), tensor_of(py::object(pair[1]).ptr()));
  }
  graph->made = py::cast<std::vector<int64_t>>(py::handle(made));
  library->reused = py::cast<std::vector<size_t>>(py::handle(reused));
  library->taken = py::cast<std::vector<size_t>>(py::handle(taken));
  for (size_t i = 0; i < graph->made.size(); ++i)
    library->results.push_back({Library::Result::Made, i, {}});
  library->graph = std::move(graph);
  return library_object(std::move(library));
  END_HANDLE_TH_ERRORS
}

// picked(library, results): the same graph, asked for other results.
PyObject* make_picked(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *from = nullptr, *results = nullptr;
  if (!PyArg_ParseTuple(args, "O!O", library_type, &from, &results)) return nullptr;
  auto library = std::make_shared<Library>(*reinterpret_cast<LibraryObject*>(from)->library);
  const auto before = std::exchange(library->results, {});
  for (const auto& row : py::cast<py::list>(py::handle(results))) {
    Library::Result result = result_of(row);
    library->results.push_back(
        result.kind == Library::Result::Made ? before.at(result.place) : std::move(result));
  }
  return library_object(std::move(library));
  END_HANDLE_TH_ERRORS
}

// ---- what a node calls ----

// Either a library or a Python callable of one list, which it may empty.
struct Callee {
  std::shared_ptr<Library> library;
  PyObject* python = nullptr;

  // With the GIL held, unless it is a library.
  Values operator()(Values&& row) const {
    if (library) return library->run(std::move(row.tensors));
    Owned list(list_of(std::move(row)));
    return values_of(Owned(PyObject_CallOneArg(python, list.object)).object);
  }
};

Callee callee_of(PyObject* object) {
  Callee callee;
  if (Py_TYPE(object) == library_type)
    callee.library = reinterpret_cast<LibraryObject*>(object)->library;
  else
    callee.python = Py_NewRef(object);
  return callee;
}

}  // namespace pullback
