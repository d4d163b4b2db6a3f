// A compiled program: all that `run.node.NodeSpec` says of it, and its compiled backward.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "layout.h"
#include "library.h"

namespace pullback {

// A compiled backward for cotangents that are laid out as `given`, and the layouts of what it reads:
// a cotangent that is laid out otherwise is copied. The next one is for other cotangents.
struct Pull {
  Callee backward;
  std::vector<Layout> read, given, cotangents;
  std::vector<size_t> donated;  // the saved tensors that it writes over
  const Pull* next = nullptr;
};

// Where a value comes from: from the inputs as it is, from what forward made as the complement.
using Source = int64_t;

// The programs that are alive, by number.
struct Program;
std::mutex known_lock;
std::unordered_map<int64_t, std::weak_ptr<Program>> known;

struct Program {
  std::string name;
  int64_t number;
  std::vector<Layout> inputs;
  std::vector<bool> needs;
  Callee forward;
  std::vector<Source> outputs, saved;
  size_t read;  // how many of the saved tensors the compiled backward reads
  std::vector<c10::IValue> numbers;  // what it reads besides; none where forward makes it
  std::vector<Source> number_sources;
  std::vector<bool> is_live;  // whether an output carries a gradient
  std::vector<size_t> shadows;  // outputs without one that are also returned with one
  std::vector<Layout> cotangents;
  std::vector<size_t> donated;  // those of the saved that the compiled backward may write over
  PyObject* begin = nullptr;  // makes the compiled backward
  PyObject* general = nullptr;
  mutable std::atomic<const Pull*> pulls{nullptr};  // the youngest first; set with the GIL held

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The last owner may be a node that ends on a thread without the GIL, or after Python.
  ~Program() {
    if (!Py_IsInitialized()) return;
    {
      const std::lock_guard<std::mutex> lock(known_lock);
      known.erase(number);
    }
    HoldGil gil;
    Py_XDECREF(general);
    Py_XDECREF(begin);
    Py_XDECREF(forward.python);
    for (const Pull* made = pulls.load(); made != nullptr;) {
      Py_XDECREF(made->backward.python);
      delete std::exchange(made, made->next);
    }
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(general);
    Py_VISIT(begin);
    Py_VISIT(forward.python);
    for (const Pull* made = pulls.load(); made != nullptr; made = made->next)
      Py_VISIT(made->backward.python);
    return 0;
  }
};

std::shared_ptr<Program> program_of(const py::dict& given) {
  static std::atomic<int64_t> count{0};
  auto program = std::make_shared<Program>();
  program->name = py::cast<std::string>(given["name"]);
  program->number = ++count;
  program->inputs = layouts_of(given["inputs"]);
  program->needs = py::cast<std::vector<bool>>(given["needs"]);
  program->forward = callee_of(py::object(given["forward"]).ptr());
  if (program->forward.library) align(program->inputs);
  program->outputs = py::cast<std::vector<Source>>(given["outputs"]);
  program->saved = py::cast<std::vector<Source>>(given["saved"]);
  program->read = py::cast<size_t>(given["read"]);
  program->number_sources = py::cast<std::vector<Source>>(given["number_sources"]);
  for (const auto& value : py::cast<py::list>(given["numbers"]))
    program->numbers.push_back(value.is_none() ? c10::IValue() : number_of(value.ptr()));
  program->is_live = py::cast<std::vector<bool>>(given["is_live"]);
  program->shadows = py::cast<std::vector<size_t>>(given["shadows"]);
  program->cotangents = layouts_of(given["cotangents"]);
  program->donated = py::cast<std::vector<size_t>>(given["donated"]);
  program->begin = py::object(given["begin"]).release().ptr();
  program->general = py::object(given["general"]).release().ptr();
  const std::lock_guard<std::mutex> lock(known_lock);
  known.emplace(program->number, program);
  return program;
}

}  // namespace pullback
