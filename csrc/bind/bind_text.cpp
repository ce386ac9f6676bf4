// Bindings of what works on text alone: the pretokenizers and normalization.
#include <optional>
#include <string>
#include <vector>

#include "bind/steps_binding.hpp"
#include "core/text/normal_forms.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

class PretokenizerBinding {
 public:
  explicit PretokenizerBinding(const PatternChoice& pattern)
      : pretokenizer_(parse_pattern(pattern)) {}

  std::optional<std::string> name() const {
    const auto name = name_of(pretokenizer_);
    return name ? std::optional<std::string>(*name) : std::nullopt;
  }

  bool keeps_text() const { return pretokenizer_.keeps_text(); }

  py::array_t<std::int64_t> ends(const py::buffer& data, const std::string& level_name) const {
    const std::optional<Level> level =
        level_name == "plain" ? std::nullopt : std::optional(parse_level(level_name));
    const Bytes bytes(data);
    const std::span<const std::uint8_t> text = bytes.span();
    if (text.size() >= std::size_t{1} << 31) throw py::value_error("the document is 2 GiB or more");
    require_utf8(text);
    std::vector<std::int64_t> ends;
    {
      const py::gil_scoped_release release;
      ends = pretoken_ends(pretokenizer_, level, text);
    }
    return py::array_t<std::int64_t>(static_cast<py::ssize_t>(ends.size()), ends.data());
  }

 private:
  Pretokenizer pretokenizer_;
};

std::vector<StepTuple> pattern_steps(const std::string& name) {
  const auto texts = texts_of_pattern(name);
  if (!texts) throw py::value_error("pattern '" + name + "' is unknown; see patterns()");
  std::vector<StepTuple> steps;
  for (const StepText& text : *texts) steps.emplace_back(text.kind, text.text, text.flag);
  return steps;
}

py::bytes normalized(const std::string& form, const py::buffer& data) {
  const NormalForm wanted = parse_form(form);
  const Bytes bytes(data);
  const std::span<const std::uint8_t> span = bytes.span();
  require_utf8(span);
  const std::string_view text(reinterpret_cast<const char*>(span.data()), span.size());
  std::string out;
  {
    const py::gil_scoped_release release;
    normalize(wanted, text, out);
  }
  return py::bytes(out);
}

}  // namespace

void bind_text(py::module_& module) {
  module.def("patterns", [] {
    py::list names;
    for (const std::string_view name : pattern_names())
      names.append(py::str(name.data(), name.size()));
    return names;
  });
  module.def("pattern_steps", &pattern_steps, py::arg("name"));
  py::class_<PretokenizerBinding>(module, "Pretokenizer")
      .def(py::init<const PatternChoice&>(), py::arg("pattern"))
      .def_property_readonly("name", &PretokenizerBinding::name)
      .def_property_readonly("keeps_text", &PretokenizerBinding::keeps_text)
      .def("ends", &PretokenizerBinding::ends, py::arg("data"), py::arg("level") = "auto");
  module.def("normalize", &normalized, py::arg("form"), py::arg("data"));
}

}  // namespace tokpack
