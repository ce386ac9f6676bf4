// The native module's table of contents.
#include "bind/bind.hpp"
#include "bind/bus_errors.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "tokpack's native core; see _core.pyi for what each name does.";
  module.attr("__version__") = TOKPACK_VERSION;
  tokpack::install_bus_handler();
  module.def("watch_bus_errors", &tokpack::install_bus_handler);
  tokpack::bind_json(module);
  tokpack::bind_text(module);
  tokpack::bind_bpe(module);
  tokpack::bind_sentencepiece(module);
  tokpack::bind_megatron(module);
  tokpack::bind_samples(module);
  tokpack::bind_gather(module);
  tokpack::bind_packing(module);
  tokpack::bind_documents(module);
}
