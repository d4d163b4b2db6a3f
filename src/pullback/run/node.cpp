// One autograd node for every compiled program: the native backend of `pullback.run`.
//
// An Entry is what `run.node.NodeSpec` describes, for the calls that it fits. Called with anything
// else it returns MISS and has done nothing. Its forward and its backward are graphs that Inductor
// compiled: a Library, which runs without Python, or a Python callable of one list. What the
// compiled backward does not cover, the function `general` of the spec does: missing cotangents,
// double backward, tensors of other kinds.
//
// Only headers that PyTorch installs, and one node class: `torch::autograd::Function`, which has
// kept its form while the classes below it changed from release to release.

#include <Python.h>
#include <dlfcn.h>
#include <structmember.h>

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/inductor/inductor_ops.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::inductor::AOTIModelContainerRunner;

namespace pullback {

// ---- Python objects and errors ----

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

// ---- kinds of tensors ----

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

enum class Demands { Exact, Dense, Any };

struct Layout {
  Demands demands;
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes, strides;
  c10::DispatchKeySet keys;
  uintptr_t alignment = 1;  // of the address, in bytes

  bool is_kind_of(const at::Tensor& tensor) const {
    return tensor.unsafeGetTensorImpl()->key_set() == keys && tensor.scalar_type() == dtype &&
        tensor.device() == device &&
        (demands == Demands::Exact ? tensor.sizes() == at::IntArrayRef(sizes)
                                   : tensor.dim() == static_cast<int64_t>(sizes.size()));
  }

  bool is_laid_out_as(const at::Tensor& tensor) const {
    if (demands == Demands::Any) return true;
    if (demands == Demands::Dense ? !tensor.is_contiguous() : !has_strides_of(tensor))
      return false;
    return alignment == 1 ||
        reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % alignment == 0;
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
    if (demands == Demands::Exact && overlaps()) return false;
    at::Tensor copy = demands == Demands::Exact
        ? at::empty_strided(sizes, strides, tensor.options())
        : at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
    copy.copy_(tensor);
    tensor = std::move(copy);
    return true;
  }
};

Layout layout_of(Demands demands, const py::handle& row) {
  const auto fields = py::cast<py::tuple>(row);
  Layout layout{
      demands,
      py::cast<at::ScalarType>(fields[0]),
      py::cast<at::Device>(fields[1]),
      py::cast<std::vector<int64_t>>(fields[2]),
      py::cast<std::vector<int64_t>>(fields[3]),
      {}};
  layout.keys = plain_keys(layout.device);
  return layout;
}

std::vector<Layout> layouts_of(Demands demands, const py::handle& rows) {
  std::vector<Layout> layouts;
  for (const auto& row : py::cast<py::list>(rows)) layouts.push_back(layout_of(demands, row));
  return layouts;
}

// Code for a GPU reads several numbers at once.
void align(std::vector<Layout>& layouts) {
  for (Layout& layout : layouts)
    if (!layout.device.is_cpu()) layout.alignment = 16;
}

// ---- values ----

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

// ---- what is called ----

// A compiled graph that needs no Python. Several threads may run it at once.
struct Graph {
  virtual ~Graph() = default;
  virtual variable_list run(const variable_list& given) const = 0;
};

// A graph that Inductor compiled ahead of time, as a whole.
struct Ahead : Graph {
  std::unique_ptr<AOTIModelContainerRunner> runner;

  variable_list run(const variable_list& given) const override { return runner->run(given); }
};

// A graph that Inductor compiled as kernels and as Python that calls them, read from that Python.
struct Step {
  enum Kind { Empty, View, Same, Drop, Kernel, Mm, Bmm, Addmm } kind;
  size_t to = 0;  // the register that it writes, or drops
  std::vector<size_t> from;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype = at::kFloat;
  int64_t offset = 0;
  void* kernel = nullptr;
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

struct Steps : Graph {
  std::vector<Step> steps;
  size_t register_count = 0;
  std::vector<std::pair<size_t, at::Tensor>> constants;
  std::vector<int64_t> made;  // a register, or -1 for nothing

  variable_list run(const variable_list& given) const override {
    variable_list registers(register_count);
    std::copy(given.begin(), given.end(), registers.begin());
    for (const auto& [place, tensor] : constants) registers[place] = tensor;
    for (const Step& step : steps) take(step, registers);
    variable_list results;
    results.reserve(made.size());
    for (int64_t place : made) results.push_back(place < 0 ? at::Tensor() : registers[place]);
    return results;
  }

  static void take(const Step& step, variable_list& registers) {
    const auto from = [&](size_t i) -> const at::Tensor& { return registers[step.from[i]]; };
    at::Tensor& to = registers[step.to];
    switch (step.kind) {
      case Step::Empty:
        to = at::Tensor(at::detail::empty_strided_cpu(step.sizes, step.strides, step.dtype));
        break;
      case Step::View:
        to = torch::inductor::_reinterpret_tensor(from(0), step.sizes, step.strides, step.offset);
        break;
      case Step::Same:
        to = from(0);
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
      case Step::Mm:
        at::mm_out(to, from(0), from(1));
        break;
      case Step::Bmm:
        at::bmm_out(to, from(0), from(1));
        break;
      case Step::Addmm:
        at::addmm_out(to, from(0), from(1), from(2), step.beta, step.alpha);
        break;
    }
  }
};

// A graph, and where all that it is asked for comes from.
struct Library {
  struct Result {
    enum Kind { Made, Given, Number, Nothing } kind;
    size_t place;
    c10::IValue number;
  };

  std::shared_ptr<const Graph> graph;  // none if there is nothing to compute
  std::vector<size_t> taken;  // those of its arguments that are tensors
  std::vector<Result> results;

  Values run(const variable_list& row) const {
    variable_list given, made;
    given.reserve(taken.size());
    for (size_t place : taken) given.push_back(row.at(place));
    if (graph) made = graph->run(given);
    Values values;
    values.tensors.resize(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const Result& result = results[i];
      if (result.kind == Result::Number)
        values.numbers.emplace_back(i, result.number);
      else if (result.kind != Result::Nothing)
        values.tensors[i] = (result.kind == Result::Made ? made : row).at(result.place);
    }
    return values;
  }
};

// Either a library or a Python callable of one list, which it may empty.
struct Callee {
  std::shared_ptr<Library> library;
  PyObject* python = nullptr;

  // With the GIL held, unless it is a library.
  Values operator()(Values&& row) const {
    if (library) return library->run(row.tensors);
    Owned list(list_of(std::move(row)));
    return values_of(Owned(PyObject_CallOneArg(python, list.object)).object);
  }
};

Callee callee_of(PyObject* object);

// ---- a program ----

// A compiled backward, and the layouts of what it reads.
struct Pull {
  Callee backward;
  std::vector<Layout> read, cotangents;
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
  Demands demands;
  std::vector<Layout> inputs;
  std::vector<bool> needs;
  Callee forward;
  std::vector<Source> outputs, saved;
  size_t read;  // how many of the saved tensors the compiled backward reads
  std::vector<c10::IValue> numbers;  // what it reads besides; none where forward makes it
  std::vector<Source> number_sources;
  std::vector<bool> is_live;  // whether an output carries a gradient
  std::vector<Layout> cotangents;
  PyObject* begin = nullptr;  // makes the compiled backward
  PyObject* general = nullptr;
  mutable std::atomic<const Pull*> pull{nullptr};  // set once, with the GIL held

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
    const Pull* made = pull.load();
    if (made != nullptr) Py_XDECREF(made->backward.python);
    delete made;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(general);
    Py_VISIT(begin);
    Py_VISIT(forward.python);
    const Pull* made = pull.load();
    if (made != nullptr) Py_VISIT(made->backward.python);
    return 0;
  }
};

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
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    outputs.push_back(value(program.outputs[i]));
    if (!program.is_live[i]) silent.push_back(outputs.back());
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

// The compiled backward, made by Python from a first row.
const Pull* begin(const Program& program, const Values& row) {
  HoldGil gil;
  Owned list(list_of(Values(row)));
  Owned made(PyObject_CallOneArg(program.begin, list.object));
  if (const Pull* other = program.pull.load()) return other;  // another thread was faster
  const auto pair = py::cast<py::tuple>(py::handle(made.object));
  auto pull = std::make_unique<Pull>();
  pull->read = layouts_of(program.demands, pair[1]);
  pull->cotangents = program.cotangents;
  pull->backward = callee_of(py::object(pair[0]).ptr());
  if (pull->backward.library) {
    align(pull->read);
    align(pull->cotangents);
  }
  program.pull.store(pull.get());
  return pull.release();
}

// The gradients of the inputs that need one, by the compiled backward; false if it cannot.
bool pulled(
    const Program& program, AutogradContext* ctx, const variable_list& saved,
    const variable_list& cotangents, variable_list& gradients) {
  if (at::GradMode::is_enabled() || !is_plain_here()) return false;
  Values row = row_of(program, ctx, saved, cotangents);
  const size_t first = program.read + program.numbers.size();
  const Pull* pull = program.pull.load();
  if (pull == nullptr) {
    for (size_t i = 0; i < program.read; ++i)
      if (row.tensors[i].unsafeGetTensorImpl()->key_set() != plain_keys(row.tensors[i].device()))
        return false;
    if (!take(program.cotangents, row.tensors, first)) return false;
    pull = begin(program, row);
  }
  if (!take(pull->read, row.tensors, 0) || !take(pull->cotangents, row.tensors, first))
    return false;
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
  const auto saved = ctx->get_saved_variables();
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

// ---- Entry ----

struct Entry {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<Program> program;
};

PyObject* miss = Py_NewRef(Py_None);
PyTypeObject* entry_type = nullptr;
PyTypeObject* library_type = nullptr;

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

// ---- Library, in Python ----

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

Step::Kind step_kind(const std::string& word) {
  static const std::unordered_map<std::string, Step::Kind> kinds{
      {"empty", Step::Empty}, {"view", Step::View},     {"same", Step::Same},
      {"drop", Step::Drop},   {"kernel", Step::Kernel}, {"mm", Step::Mm},
      {"bmm", Step::Bmm},     {"addmm", Step::Addmm}};
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
  if (step.kind != Step::Kernel) return step;
  TORCH_CHECK_VALUE(step.from.size() <= MOST_POINTERS, "a kernel of too many pointers");
  step.kernel = kernel_at(py::cast<std::string>(row["path"]), py::cast<std::string>(row["name"]));
  return step;
}

PyObject* library_object(std::shared_ptr<Library> library) {
  auto* self = reinterpret_cast<LibraryObject*>(library_type->tp_alloc(library_type, 0));
  if (self == nullptr) return nullptr;
  new (&self->library) std::shared_ptr<Library>(std::move(library));
  return reinterpret_cast<PyObject*>(self);
}

// steps(register_count, taken, steps, constants, made): a graph that was read step by step.
PyObject* make_steps(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  Py_ssize_t count = 0;
  PyObject *taken = nullptr, *steps = nullptr, *constants = nullptr, *made = nullptr;
  if (!PyArg_ParseTuple(args, "nOOOO", &count, &taken, &steps, &constants, &made)) return nullptr;
  auto graph = std::make_shared<Steps>();
  auto library = std::make_shared<Library>();
  graph->register_count = count;
  for (const auto& row : py::cast<py::list>(py::handle(steps)))
    graph->steps.push_back(step_of(py::cast<py::dict>(row)));
  for (const auto& row : py::cast<py::list>(py::handle(constants))) {
    const auto pair = py::cast<py::tuple>(row);
    graph->constants.emplace_back(
        py::cast<size_t>(pair[0]), tensor_of(py::object(pair[1]).ptr()));
  }
  graph->made = py::cast<std::vector<int64_t>>(py::handle(made));
  library->taken = py::cast<std::vector<size_t>>(py::handle(taken));
  for (size_t i = 0; i < graph->made.size(); ++i)
    library->results.push_back({Library::Result::Made, i, {}});
  library->graph = std::move(graph);
  return library_object(std::move(library));
  END_HANDLE_TH_ERRORS
}

// ahead(path, device, copies, taken, made_count): a graph that was compiled ahead of time.
PyObject* make_ahead(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* path = nullptr;
  const char* device = nullptr;
  Py_ssize_t copies = 1, made_count = 0;
  PyObject* taken = nullptr;
  if (!PyArg_ParseTuple(args, "ssnOn", &path, &device, &copies, &taken, &made_count))
    return nullptr;
  auto library = std::make_shared<Library>();
  library->taken = py::cast<std::vector<size_t>>(py::handle(taken));
  for (Py_ssize_t i = 0; i < made_count; ++i)
    library->results.push_back({Library::Result::Made, static_cast<size_t>(i), {}});
  auto& makers = torch::inductor::getAOTIModelRunnerRegistry();
  const std::string place(device), kind = place.substr(0, place.find(':'));
  const auto make = makers.find(kind);
  TORCH_CHECK(make != makers.end(), "no runner for graphs compiled for ", kind);
  auto graph = std::make_shared<Ahead>();
  {
    ReleaseGil released(true);
    graph->runner = make->second(path, copies, place, "", false);
  }
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

// A library takes one list of values, as the graph does, and gives a list of them.
PyObject* library_call(PyObject* self, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject* row = nullptr;
  if (!PyArg_ParseTuple(args, "O", &row)) return nullptr;
  Values made;
  {
    const Values given = values_of(row);
    const auto library = reinterpret_cast<LibraryObject*>(self)->library;
    ReleaseGil released(true);
    const at::NoGradGuard below;
    made = library->run(given.tensors);
  }
  return list_of(std::move(made));
  END_HANDLE_TH_ERRORS
}

// ---- descriptions ----

Callee callee_of(PyObject* object) {
  Callee callee;
  if (Py_TYPE(object) == library_type)
    callee.library = reinterpret_cast<LibraryObject*>(object)->library;
  else
    callee.python = Py_NewRef(object);
  return callee;
}

std::shared_ptr<Program> program_of(const py::dict& given) {
  static std::atomic<int64_t> count{0};
  auto program = std::make_shared<Program>();
  const auto demands = py::cast<std::string>(given["demands"]);
  program->name = py::cast<std::string>(given["name"]);
  program->number = ++count;
  program->demands = demands == "exact" ? Demands::Exact
      : demands == "dense"              ? Demands::Dense
                                        : Demands::Any;
  program->inputs = layouts_of(program->demands, given["inputs"]);
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
  // Cotangents are brought into one layout even where the graphs would take any.
  program->cotangents = layouts_of(
      program->demands == Demands::Any ? Demands::Dense : program->demands, given["cotangents"]);
  program->begin = py::object(given["begin"]).release().ptr();
  program->general = py::object(given["general"]).release().ptr();
  const std::lock_guard<std::mutex> lock(known_lock);
  known.emplace(program->number, program);
  return program;
}

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

// ---- the module ----

PyMemberDef entry_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Entry, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef entry_methods[] = {
    {"become", entry_become, METH_O, "Run from now on what another entry runs."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot entry_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_traverse, reinterpret_cast<void*>(entry_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(entry_clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(entry_free)},
    {Py_tp_members, entry_members},
    {Py_tp_methods, entry_methods},
    {0, nullptr}};

PyType_Spec entry_spec = {
    "pullback_node.Entry", sizeof(Entry), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_DISALLOW_INSTANTIATION,
    entry_slots};

PyType_Slot library_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(library_call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(library_free)},
    {0, nullptr}};

PyType_Spec library_spec = {
    "pullback_node.Library", sizeof(LibraryObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, library_slots};

PyMethodDef functions[] = {
    {"set_miss", set_miss, METH_O, "What entries return for calls that they do not fit."},
    {"entry", make_entry, METH_O, "The entry that a description describes."},
    {"steps", make_steps, METH_VARARGS, "A graph that was read step by step."},
    {"ahead", make_ahead, METH_VARARGS, "A graph that was compiled ahead of time."},
    {"picked", make_picked, METH_VARARGS, "A graph, asked for other results."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "pullback_node", nullptr, -1, functions};

}  // namespace pullback

PyMODINIT_FUNC PyInit_pullback_node() {
  using namespace pullback;
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr) return nullptr;
  entry_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&entry_spec));
  library_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&library_spec));
  if (entry_type == nullptr || library_type == nullptr ||
      PyObject_SetAttrString(
          reinterpret_cast<PyObject*>(entry_type), "checks_calls", Py_True) < 0 ||
      PyModule_AddObjectRef(made, "Library", reinterpret_cast<PyObject*>(library_type)) < 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
