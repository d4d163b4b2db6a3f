// One autograd node for every compiled program: the native backend of `pullback.run`.
//
// An Entry is what `run.node.NodeSpec` describes, for the calls that it fits. Called with anything
// else it returns MISS and has done nothing. Its forward and its backward are graphs that Inductor
// compiled: a Library, which runs without Python, or a Python callable of one list. What the
// compiled backward does not cover, the function `general` of the spec does: missing cotangents,
// double backward, tensors of other kinds.
//
// The headers beside this file hold one idea each, in the order gil, layout, values, gpu, steps,
// library, program, autograd, entry; they are parts of this one unit, which ends with the Python
// module. Besides them it takes only headers that PyTorch installs.

#include <Python.h>
#include <structmember.h>

#include "entry.h"

namespace pullback {

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
