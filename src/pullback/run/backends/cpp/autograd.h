// The node in the graph of autograd: forward and backward of a program.
//
// One node class, that of `torch::autograd::Function`, which has kept its form while the classes
// below it changed from release to release.

#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "program.h"

namespace pullback {

using torch::autograd::AutogradContext;

struct Compiled : torch::autograd::Function<Compiled> {
  static variable_list forward(
      AutogradContext* ctx, const std::shared_ptr<Program>* program, at::TensorList inputs);
};

struct Backward {
  static constexpr bool is_traceable = false;
  static variable_list backward(AutogradContext* ctx, variable_list cotangents);
};

}  // namespace pullback

// The node of `Compiled` is that of `Backward` under the name of its program.
template <>
struct torch::autograd::CppNode<pullback::Compiled>
    : torch::autograd::CppNode<pullback::Backward> {
  std::shared_ptr<pullback::Program> program;

  std::string name() const override { return program ? program->name : "CompiledBackward"; }

  static void set_program(AutogradContext* ctx, std::shared_ptr<pullback::Program> program) {
    const auto node = ctx->grad_fn_.lock();
    static_cast<CppNode*>(node.get())->program = std::move(program);
  }

  // As `release_variables`, which waits for the end of the backward that calls this.
  static void release(AutogradContext* ctx) {
    ctx->saved_variables_.clear();
    ctx->has_freed_buffers_ = true;
  }

  // Compiled autograd runs backward with a context of its own, which has no node.
  static std::shared_ptr<pullback::Program> program_of(AutogradContext* ctx) {
    if (const auto node = ctx->grad_fn_.lock()) return static_cast<CppNode*>(node.get())->program;
    const std::lock_guard<std::mutex> lock(pullback::known_lock);
    const auto found = pullback::known.find(ctx->saved_data["program"].toInt());
    const auto program = found == pullback::known.end() ? nullptr : found->second.lock();
    TORCH_CHECK(program, "the program of this node is gone");
    return program;
  }
};

namespace pullback {

using CompiledNode = torch::autograd::CppNode<Compiled>;

// ---- forward ----

variable_list Compiled::forward(
    AutogradContext* ctx, const std::shared_ptr<Program>* shared, at::TensorList inputs) {
  const Program& program = **shared;
  CompiledNode::set_program(ctx, *shared);
  ctx->set_materialize_grads(false);
  ctx->saved_data["program"] = program.number;
  Values given;
  given.tensors.assign(inputs.begin(), inputs.end());
  const Values made = program.forward(std::move(given));
  const auto value = [&](Source source) {
    return source >= 0 ? inputs[source] : made.tensor(~source);
  };
  variable_list saved, outputs, silent;
  saved.reserve(program.saved.size());
  for (Source source : program.saved) saved.push_back(value(source));
  ctx->save_for_backward(std::move(saved));
  for (size_t i = 0; i < program.numbers.size(); ++i)
    if (program.numbers[i].isNone())
      ctx->saved_data[std::to_string(i)] = made.number(~program.number_sources[i]);
  for (Source source : program.outputs) outputs.push_back(value(source));
  for (size_t place : program.shadows) outputs[place] = outputs[place].detach();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (program.is_live[i]) continue;
    if (outputs[i].is_view()) outputs[i] = outputs[i].detach();  // else it would require grad
    silent.push_back(outputs[i]);
  }
  if (!silent.empty()) ctx->mark_non_differentiable(silent);
  return outputs;
}

// ---- backward ----

c10::IValue number_at(const Program& program, AutogradContext* ctx, size_t place) {
  const c10::IValue& known = program.numbers[place];
  return known.isNone() ? ctx->saved_data[std::to_string(place)] : known;
}

// What the compiled backward takes: what it reads of the saved, the numbers, the cotangents.
Values row_of(
    const Program& program, AutogradContext* ctx, const variable_list& saved,
    const variable_list& cotangents) {
  Values row;
  const size_t numbers = program.numbers.size();
  row.tensors.reserve(program.read + numbers + cotangents.size());
  row.tensors.assign(saved.begin(), saved.begin() + program.read);
  for (size_t i = 0; i < numbers; ++i) {
    row.numbers.emplace_back(row.tensors.size(), number_at(program, ctx, i));
    row.tensors.emplace_back();
  }
  row.tensors.insert(row.tensors.end(), cotangents.begin(), cotangents.end());
  return row;
}

bool take(const std::vector<Layout>& layouts, variable_list& tensors, size_t first) {
  for (size_t i = 0; i < layouts.size(); ++i)
    if (!layouts[i].take(tensors[first + i])) return false;
  return true;
}

// What of the saved a compiled backward writes over; all that it may where nobody can tell.
std::vector<size_t> written_over(const Program& program, const Callee& backward) {
  if (!backward.library) return program.donated;
  std::vector<size_t> places;
  for (size_t place : program.donated) {
    const auto& reused = backward.library->reused;
    if (std::find(reused.begin(), reused.end(), place) != reused.end()) places.push_back(place);
  }
  return places;
}

constexpr size_t MOST_PULLS = 64;

bool are_laid_out_as(
    const std::vector<Layout>& layouts, const variable_list& tensors, size_t first) {
  for (size_t i = 0; i < layouts.size(); ++i)
    if (!layouts[i].has_strides_of(tensors[first + i])) return false;
  return true;
}

// The backward for cotangents that are laid out like those of the row. There are not many: what
// is not among them is copied for one of them.
const Pull* find(const Program& program, const Values& row, size_t first) {
  size_t count = 0;
  for (const Pull* pull = program.pulls.load(); pull != nullptr; pull = pull->next)
    if (are_laid_out_as(pull->given, row.tensors, first) || ++count == MOST_PULLS) return pull;
  return nullptr;
}

// A backward for one call alone.
struct Passing {
  std::unique_ptr<Pull> pull;

  ~Passing() {
    if (!pull || pull->backward.library) return;
    HoldGil gil;
    Py_DECREF(pull->backward.python);
  }
};

// A compiled backward for cotangents like those of the row, made by Python. It is kept for others
// like these, or is for this row alone, and then `passing` holds it.
const Pull* begin(const Program& program, const Values& row, size_t first, Passing& passing) {
  HoldGil gil;
  Owned list(list_of(Values(row)));
  Owned made(PyObject_CallOneArg(program.begin, list.object));
  if (const Pull* other = find(program, row, first)) return other;  // another thread was faster
  const auto found = py::cast<py::tuple>(py::handle(made.object));
  auto pull = std::make_unique<Pull>();
  pull->backward = callee_of(py::object(found[0]).ptr());
  pull->read = layouts_of(found[1]);
  pull->cotangents = layouts_of(found[2]);
  pull->given = program.cotangents;
  for (size_t i = 0; i < pull->given.size(); ++i)
    pull->given[i].strides = row.tensors[first + i].strides().vec();
  pull->donated = written_over(program, pull->backward);
  if (pull->backward.library) {
    align(pull->read);
    align(pull->cotangents);
  }
  if (!py::cast<bool>(found[3])) {
    passing.pull = std::move(pull);
    return passing.pull.get();
  }
  pull->next = program.pulls.load();
  program.pulls.store(pull.get());
  return pull.release();
}

// Whether nobody else can see the memory of a tensor: it and its memory are held once, and that was
// allocated as usual. An array of NumPy's was not, nor memory that is copied when it is written.
bool is_alone(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const auto* allocator = storage.allocator();
  return tensor.use_count() == 1 && storage.use_count() == 1 && allocator != nullptr &&
      storage.data_ptr().get_deleter() == allocator->raw_deleter();
}

// Where the compiled backward writes over saved tensors, let the node go of them, as the engine
// would do a moment later, unless the graph is kept. Of what somebody else can still see, it gets a
// copy.
void donate(
    const std::vector<size_t>& donated, AutogradContext* ctx, variable_list& saved,
    variable_list& tensors) {
  saved.clear();
  if (donated.empty()) return;
  if (!torch::autograd::get_current_graph_task_keep_graph()) CompiledNode::release(ctx);
  for (size_t place : donated) {
    at::Tensor& tensor = tensors[place];
    if (!is_alone(tensor))
      tensor = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
  }
}

// The gradients of the inputs that need one, by the compiled backward; false if it cannot.
bool pulled(
    const Program& program, AutogradContext* ctx, variable_list& saved,
    const variable_list& cotangents, variable_list& gradients) {
  if (at::GradMode::is_enabled() || !is_plain_here()) return false;
  Values row = row_of(program, ctx, saved, cotangents);
  const size_t first = program.read + program.numbers.size();
  for (size_t i = 0; i < program.cotangents.size(); ++i)
    if (!row.tensors[first + i].defined() || !program.cotangents[i].is_kind_of(row.tensors[first + i]))
      return false;
  Passing passing;
  const Pull* pull = find(program, row, first);
  if (pull == nullptr) {
    for (size_t i = 0; i < program.read; ++i)
      if (row.tensors[i].unsafeGetTensorImpl()->key_set() != plain_keys(row.tensors[i].device()))
        return false;
    pull = begin(program, row, first, passing);
  }
  if (!take(pull->read, row.tensors, 0) || !take(pull->cotangents, row.tensors, first))
    return false;
  donate(pull->donated, ctx, saved, row.tensors);
  if (pull->backward.library) {
    gradients = pull->backward(std::move(row)).tensors;
  } else {
    HoldGil gil;
    gradients = pull->backward(std::move(row)).tensors;
  }
  return true;
}

// One gradient per input, by Python.
variable_list pulled_by_general(
    const Program& program, AutogradContext* ctx, const variable_list& saved,
    const variable_list& cotangents) {
  HoldGil gil;
  Owned numbers(PyTuple_New(static_cast<Py_ssize_t>(program.numbers.size())));
  for (size_t i = 0; i < program.numbers.size(); ++i)
    PyTuple_SET_ITEM(numbers.object, i, python_of(number_at(program, ctx, i)));
  Owned own(tuple_of(saved)), given(tuple_of(cotangents));
  Owned result(PyObject_CallFunctionObjArgs(
      program.general, own.object, numbers.object, given.object, nullptr));
  return values_of(result.object).tensors;
}

variable_list Backward::backward(AutogradContext* ctx, variable_list given) {
  const auto program = CompiledNode::program_of(ctx);
  auto saved = ctx->get_saved_variables();
  variable_list cotangents, gradients;
  for (size_t i = 0; i < given.size(); ++i)
    if (program->is_live[i]) cotangents.push_back(std::move(given[i]));
  const bool is_pulled = pulled(*program, ctx, saved, cotangents, gradients);
  if (!is_pulled) gradients = pulled_by_general(*program, ctx, saved, cotangents);
  const size_t count = program->inputs.size();
  variable_list all(1 + count);  // the first belongs to the program itself
  size_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    if (is_pulled && !program->needs[i]) continue;
    TORCH_CHECK(next < gradients.size(), program->name, " must give one gradient per input");
    if (ctx->needs_input_grad(i)) all[1 + i] = gradients[next];
    ++next;
  }
  return all;
}

}  // namespace pullback
