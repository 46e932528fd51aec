// SPDX-License-Identifier: Apache-2.0
#include "comm/environment.h"

#include <array>
#include <charconv>
#include <vector>

#include "comm/slurm_nodes.h"
#include "core/check.h"
#include "core/env.h"

namespace lockstep::comm {
namespace {

using core::str;

// A launcher is recognised by the variables it gives to each rank. `owns` are its alone: one of them without the rank
// is an environment that lost a part.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  // None: SLURM says it per node, see slurm_local_size.
  const char* local_size;
  bool size_alone_is_an_error;
};

// SLURM_NTASKS is also set in a shell of salloc, which is no rank; torchrun's and MPI's variables come together.
constexpr std::array kLaunchers{
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    Launcher{"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, false},
    Launcher{"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    Launcher{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
};

constexpr std::array kMeetingPoint{"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                                   "TORCHELASTIC_RESTART_COUNT"};

class Reader {
 public:
  explicit Reader(const Lookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const { return name ? lookup_(name) : std::nullopt; }

  std::optional<int> integer(const char* name) const {
    const auto value = lookup_(name);
    if (!value) {
      return std::nullopt;
    }
    int number = 0;
    const char* end = value->data() + value->size();
    const auto [stop, code] = std::from_chars(value->data(), end, number);
    if (code != std::errc() || stop != end) {
      fail(str(name, " is not a whole number"));
    }
    return number;
  }

  std::optional<std::chrono::milliseconds> seconds(const char* name) const {
    const auto value = lookup_(name);
    if (!value) {
      return std::nullopt;
    }
    double number = 0;
    const char* end = value->data() + value->size();
    const auto [stop, code] = std::from_chars(value->data(), end, number);
    if (code != std::errc() || stop != end || !(number > 0 && number < 1e9)) {
      core::fail("world.from_environment", {str(name, " is not a number of seconds"), str("'", *value, "'")});
    }
    return std::chrono::milliseconds(static_cast<long>(number * 1000));
  }

  [[noreturn]] void fail(const std::string& what, const std::string& advice = {}) const {
    core::fail("world.from_environment", {what, found(), {}, advice});
  }

 private:
  // All that this file looks at and that is set, so that a user sees where a stray value comes from.
  std::string found() const {
    std::string list;
    const auto add = [&](const char* name) {
      if (const auto value = text(name)) {
        list += str(list.empty() ? "" : " ", name, "=", *value);
      }
    };
    for (const auto& launcher : kLaunchers) {
      for (const char* name : {launcher.rank, launcher.size, launcher.local_rank, launcher.local_size}) {
        add(name);
      }
    }
    for (const char* name : kMeetingPoint) {
      add(name);
    }
    return list;
  }

  const Lookup& lookup_;
};

const Launcher* find_launcher(const Reader& env) {
  for (const auto& launcher : kLaunchers) {
    if (env.text(launcher.rank)) {
      return &launcher;
    }
    const bool stray = launcher.size_alone_is_an_error && (env.text(launcher.size) || env.text(launcher.local_rank));
    if (stray) {
      env.fail(str(launcher.name, "'s variables are half set: ", launcher.rank, " is missing"),
               str("set ", launcher.rank, ", or unset the others to run as a world of one"));
    }
  }
  return nullptr;
}

int slurm_local_size(const Reader& env) {
  const auto list = env.text("SLURM_STEP_TASKS_PER_NODE");
  const auto tasks = list ? list : env.text("SLURM_TASKS_PER_NODE");
  return tasks ? slurm_tasks_on(*tasks, env.integer("SLURM_NODEID").value_or(0)) : -1;
}

int local_size_of(const Reader& env, const Launcher& launcher) {
  return launcher.local_size ? env.integer(launcher.local_size).value_or(-1) : slurm_local_size(env);
}

void read_place(const Reader& env, const Launcher& launcher, WorldOptions& options) {
  const auto size = env.integer(launcher.size);
  if (!size) {
    env.fail(str(launcher.name, "'s variables are half set: ", launcher.size, " is missing"));
  }
  options.rank = *env.integer(launcher.rank);
  options.size = *size;
  options.local_rank = env.integer(launcher.local_rank).value_or(-1);
  options.local_size = local_size_of(env, launcher);
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    env.fail(str(launcher.rank, " and ", launcher.size, " contradict each other"));
  }
  const int local_size = options.local_size < 0 ? options.size : options.local_size;
  if (options.local_rank >= local_size || local_size > options.size || local_size < 1) {
    env.fail(str(launcher.name, "'s local rank, local size and size contradict each other"));
  }
}

std::optional<std::string> slurm_address(const Reader& env) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const auto list = env.text(name)) {
      return first_slurm_node(*list);
    }
  }
  return std::nullopt;
}

// Below the range from which systems hand out ports by themselves.
int port_from(const std::string& job) {
  unsigned hash = 5381;
  for (const char c : job) {
    hash = hash * 33 + static_cast<unsigned char>(c);
  }
  return 15000 + static_cast<int>(hash % 15000);
}

std::optional<int> derived_port(const Reader& env, const Launcher& launcher) {
  const std::string name = launcher.name;
  if (name == "SLURM") {
    const auto job = env.text("SLURM_JOB_ID");
    return job ? std::optional(port_from(*job + "." + env.text("SLURM_STEP_ID").value_or(""))) : std::nullopt;
  }
  const auto job = name == "OpenMPI" ? env.text("PMIX_NAMESPACE") : std::nullopt;
  return job ? std::optional(port_from(*job)) : std::nullopt;
}

std::optional<std::string> derived_address(const Reader& env, const Launcher& launcher, const WorldOptions& options) {
  if (std::string(launcher.name) == "torchrun") {
    return std::nullopt;
  }
  if (options.local_size == options.size) {
    return "127.0.0.1";
  }
  return std::string(launcher.name) == "SLURM" ? slurm_address(env) : std::nullopt;
}

void read_meeting_point(const Reader& env, const Launcher& launcher, WorldOptions& options) {
  const auto given_address = env.text("MASTER_ADDR");
  const auto given_port = env.integer("MASTER_PORT");
  const auto address = given_address ? given_address : derived_address(env, launcher, options);
  const auto port = given_port ? given_port : derived_port(env, launcher);
  if (!address || !port) {
    env.fail(str(launcher.name, " started ", options.size, " ranks but ", address ? "MASTER_PORT" : "MASTER_ADDR",
                 " does not say where they meet"),
             "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there");
  }
  if (*port < 1 || *port > 65535) {
    env.fail("MASTER_PORT is no port");
  }
  options.master_addr = *address;
  options.master_port = *port;
}

// torchrun's agent serves the store itself, and keeps it over restarts: each attempt has its own keys.
void read_agent_store(const Reader& env, WorldOptions& options) {
  const auto value = env.text("TORCHELASTIC_USE_AGENT_STORE").value_or("False");
  if (value == "True") {
    options.store_is_external = true;
    options.store_prefix = str("/worker/attempt_", env.integer("TORCHELASTIC_RESTART_COUNT").value_or(0));
  } else if (value != "False") {
    env.fail("TORCHELASTIC_USE_AGENT_STORE is neither True nor False");
  }
}

BackendKind backend_from(const std::string& name) {
  constexpr std::array kNames{std::pair{"auto", BackendKind::Auto}, std::pair{"self", BackendKind::Self},
                              std::pair{"gloo", BackendKind::Gloo}, std::pair{"nccl", BackendKind::Nccl}};
  for (const auto& [known, kind] : kNames) {
    if (name == known) {
      return kind;
    }
  }
  core::fail("world.from_environment", {"LOCKSTEP_BACKEND names no backend", "'" + name + "'", "auto, gloo or nccl"});
}

c10::Device device_from(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    core::fail("world.from_environment", {"LOCKSTEP_DEVICE names no device", "'" + name + "'", "cpu, cuda or cuda:0"});
  }
}

void read_own_variables(const Reader& env, WorldOptions& options) {
  options.timeout = env.seconds("LOCKSTEP_TIMEOUT_S").value_or(options.timeout);
  options.heartbeat_timeout = env.seconds("LOCKSTEP_HEARTBEAT_TIMEOUT_S").value_or(options.heartbeat_timeout);
  options.mismatch_after = env.seconds("LOCKSTEP_MISMATCH_AFTER_S").value_or(options.mismatch_after);
  options.launcher_events_fd = env.integer("LOCKSTEP_EVENTS_FD").value_or(options.launcher_events_fd);
  options.interface = env.text("LOCKSTEP_INTERFACE").value_or(options.interface);
  if (const auto backend = env.text("LOCKSTEP_BACKEND")) {
    options.backend = backend_from(*backend);
  }
  if (const auto device = env.text("LOCKSTEP_DEVICE")) {
    options.device = device_from(*device);
  }
}

}  // namespace

WorldOptions options_from(const Lookup& lookup, WorldOptions defaults) {
  const Reader env(lookup);
  auto options = std::move(defaults);
  read_own_variables(env, options);
  const auto* launcher = find_launcher(env);
  if (launcher == nullptr) {
    options.rank = 0;
    options.size = 1;
    options.local_rank = options.local_size = -1;
    return options;
  }
  read_place(env, *launcher, options);
  if (options.size > 1 && !options.store) {
    read_meeting_point(env, *launcher, options);
    read_agent_store(env, options);
  }
  return options;
}

}  // namespace lockstep::comm

namespace lockstep {

World World::from_environment(const WorldOptions& defaults) {
  return World(comm::options_from([](const char* name) { return core::env(name); }, defaults));
}

}  // namespace lockstep
