// A plugin of QEMU that prints how many instructions the emulated program took. The functions of
// QEMU are declared here, as few packages bring their header.
#include <cstddef>
#include <cstdint>
#include <cstdio>

extern "C" {

struct qemu_plugin_tb;  // instructions that are translated, and executed, together
void qemu_plugin_register_vcpu_tb_trans_cb(std::uint64_t plugin,
                                           void (*translated)(std::uint64_t, qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_cb(qemu_plugin_tb* block,
                                          void (*executed)(unsigned cpu, void* user), int flags,
                                          void* user);
void qemu_plugin_register_atexit_cb(std::uint64_t plugin, void (*ended)(std::uint64_t, void*),
                                    void* user);
std::size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb* block);

__attribute__((visibility("default"))) extern const int qemu_plugin_version;
const int qemu_plugin_version = 1;

static std::uint64_t instructions = 0;

__attribute__((visibility("default"))) int qemu_plugin_install(std::uint64_t plugin, const void*,
                                                               int, char**) {
  qemu_plugin_register_vcpu_tb_trans_cb(plugin, [](std::uint64_t, qemu_plugin_tb* block) {
    const auto add = [](unsigned, void* count) {
      instructions += reinterpret_cast<std::uintptr_t>(count);
    };
    qemu_plugin_register_vcpu_tb_exec_cb(block, add, 0,
                                         reinterpret_cast<void*>(qemu_plugin_tb_n_insns(block)));
  });
  qemu_plugin_register_atexit_cb(
      plugin,
      [](std::uint64_t, void*) {
        std::fprintf(stderr, "%llu\n", static_cast<unsigned long long>(instructions));
      },
      nullptr);
  return 0;
}
}
