// SPDX-License-Identifier: Apache-2.0
// The environments that launchers make, and the broken ones that people make, as maps.
#include "comm/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "comm/slurm_nodes.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

WorldOptions options_of(const Variables& variables, const WorldOptions& defaults = {}) {
  return comm::options_from(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
      },
      defaults);
}

std::string error_of(const Variables& variables) {
  try {
    options_of(variables);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

Variables operator+(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) {
    base[name] = value;
  }
  return base;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"}};

const Variables kSlurm{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "8"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                       {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                       {"SLURM_JOB_ID", "4711"},
                       {"SLURM_STEP_ID", "0"}};

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "prterun-host-123"}};

TEST(Environment, empty_is_a_world_of_one) {
  const auto options = options_of({});
  EXPECT_EQ(options.rank, 0);
  EXPECT_EQ(options.size, 1);
}

TEST(Environment, of_torchrun) {
  const auto options = options_of(kTorchrun);
  EXPECT_EQ(options.rank, 5);
  EXPECT_EQ(options.size, 8);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_size, 4);
  EXPECT_EQ(options.master_addr, "node0");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_FALSE(options.store_is_external);
  EXPECT_EQ(options.store_prefix, "");
}

TEST(Environment, of_torchrun_whose_agent_serves_the_store) {
  const auto options =
      options_of(kTorchrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_TRUE(options.store_is_external);
  EXPECT_EQ(options.store_prefix, "/worker/attempt_2");
}

TEST(Environment, of_torchrun_whose_agent_serves_nothing) {
  const auto options =
      options_of(kTorchrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}, {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_FALSE(options.store_is_external);
  EXPECT_EQ(options.store_prefix, "");
}

TEST(Environment, of_one_torchrun_rank_needs_no_meeting_point) {
  const auto options = options_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(options.size, 1);
}

TEST(Environment, of_slurm) {
  const auto options = options_of(kSlurm);
  EXPECT_EQ(options.rank, 5);
  EXPECT_EQ(options.size, 8);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_size, 4);
  EXPECT_EQ(options.master_addr, "gpu07");
  EXPECT_GE(options.master_port, 15000);
  EXPECT_LT(options.master_port, 30000);
}

TEST(Environment, of_slurm_gives_each_step_its_own_port) {
  EXPECT_NE(options_of(kSlurm).master_port, options_of(kSlurm + Variables{{"SLURM_STEP_ID", "1"}}).master_port);
  EXPECT_EQ(options_of(kSlurm).master_port, options_of(kSlurm + Variables{{"SLURM_PROCID", "0"}}).master_port);
}

TEST(Environment, of_slurm_on_one_node_stays_on_loopback) {
  const auto options = options_of(kSlurm + Variables{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "1"}});
  EXPECT_EQ(options.master_addr, "127.0.0.1");
}

TEST(Environment, a_given_meeting_point_wins_over_a_derived_one) {
  const auto options = options_of(kSlurm + Variables{{"MASTER_ADDR", "login"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(options.master_addr, "login");
  EXPECT_EQ(options.master_port, 1234);
}

TEST(Environment, of_a_shell_inside_an_allocation_is_a_world_of_one) {
  EXPECT_EQ(options_of({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}}).size, 1);
}

TEST(Environment, of_openmpi) {
  const auto options = options_of(kOpenMpi);
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.size, 2);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_size, 2);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_GT(options.master_port, 0);
}

TEST(Environment, of_openmpi_on_several_machines_needs_an_address) {
  const auto text = error_of(kOpenMpi + Variables{{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_NE(text.find("MASTER_ADDR does not say where they meet"), std::string::npos) << text;
  EXPECT_NE(text.find("OMPI_COMM_WORLD_SIZE=4"), std::string::npos) << text;
}

TEST(Environment, of_pmi) {
  const auto options = options_of({{"PMI_RANK", "2"},
                                   {"PMI_SIZE", "3"},
                                   {"MPI_LOCALRANKID", "2"},
                                   {"MPI_LOCALNRANKS", "3"},
                                   {"MASTER_PORT", "4000"}});
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.size, 3);
  EXPECT_EQ(options.local_rank, 2);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_EQ(options.master_port, 4000);
}

TEST(Environment, torchrun_inside_slurm_counts_as_torchrun) {
  EXPECT_EQ(options_of(kSlurm + kTorchrun).master_addr, "node0");
}

struct Broken {
  const char* name;
  Variables variables;
  const char* words;
};

class BrokenEnvironment : public testing::TestWithParam<Broken> {};

TEST_P(BrokenEnvironment, is_an_error_that_lists_what_was_found) {
  const auto text = error_of(GetParam().variables);
  EXPECT_NE(text.find(GetParam().words), std::string::npos) << text;
  for (const auto& [name, value] : GetParam().variables) {
    EXPECT_NE(text.find(name + "=" + value), std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, BrokenEnvironment,
    testing::Values(
        Broken{"rank_alone", {{"RANK", "1"}}, "WORLD_SIZE is missing"},
        Broken{"size_alone", {{"WORLD_SIZE", "2"}}, "RANK is missing"},
        Broken{"local_rank_alone", {{"LOCAL_RANK", "0"}}, "RANK is missing"},
        Broken{"rank_too_large", kTorchrun + Variables{{"RANK", "8"}}, "contradict each other"},
        Broken{"negative_rank", kTorchrun + Variables{{"RANK", "-1"}}, "contradict each other"},
        Broken{"size_zero", kTorchrun + Variables{{"WORLD_SIZE", "0"}}, "contradict each other"},
        Broken{"local_rank_too_large", kTorchrun + Variables{{"LOCAL_RANK", "4"}}, "contradict each other"},
        Broken{"local_size_too_large", kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "9"}}, "contradict each other"},
        Broken{"no_number", kTorchrun + Variables{{"RANK", "five"}}, "RANK is not a whole number"},
        Broken{"half_a_number", kTorchrun + Variables{{"RANK", "5x"}}, "RANK is not a whole number"},
        Broken{"huge_number", kTorchrun + Variables{{"WORLD_SIZE", "99999999999"}}, "WORLD_SIZE is not a whole number"},
        Broken{"no_port", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}}, "MASTER_PORT does not say"},
        Broken{"no_address", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}, "MASTER_ADDR does not say"},
        Broken{"port_zero", kTorchrun + Variables{{"MASTER_PORT", "0"}}, "MASTER_PORT is no port"},
        Broken{"port_too_large", kTorchrun + Variables{{"MASTER_PORT", "65536"}}, "MASTER_PORT is no port"},
        Broken{"agent", kTorchrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "maybe"}}, "neither True nor False"},
        Broken{"slurm_without_size", {{"SLURM_PROCID", "0"}}, "SLURM_NTASKS is missing"},
        Broken{"mpi_without_rank", {{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK is missing"},
        Broken{"pmi_without_size", {{"PMI_RANK", "0"}}, "PMI_SIZE is missing"}),
    [](const auto& param) { return param.param.name; });

TEST(Environment, own_variables_win_over_the_programs_defaults) {
  WorldOptions defaults;
  defaults.timeout = std::chrono::minutes(1);
  defaults.mismatch_after = std::chrono::seconds(9);
  const auto options = options_of({{"LOCKSTEP_TIMEOUT_S", "2.5"},
                                   {"LOCKSTEP_HEARTBEAT_TIMEOUT_S", "4"},
                                   {"LOCKSTEP_BACKEND", "gloo"},
                                   {"LOCKSTEP_DEVICE", "cpu"},
                                   {"LOCKSTEP_INTERFACE", "eth1"},
                                   {"LOCKSTEP_EVENTS_FD", "7"}},
                                  defaults);
  EXPECT_EQ(options.timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(options.heartbeat_timeout, std::chrono::seconds(4));
  EXPECT_EQ(options.mismatch_after, std::chrono::seconds(9));
  EXPECT_EQ(options.backend, BackendKind::Gloo);
  EXPECT_EQ(options.device, c10::Device(c10::kCPU));
  EXPECT_EQ(options.interface, "eth1");
  EXPECT_EQ(options.launcher_events_fd, 7);
}

TEST(Environment, own_variables_are_checked) {
  for (const char* value : {"0", "-1", "soon", "5s", "nan", "inf"}) {
    EXPECT_NE(error_of({{"LOCKSTEP_TIMEOUT_S", value}}).find("is not a number of seconds"), std::string::npos) << value;
  }
  EXPECT_NE(error_of({{"LOCKSTEP_BACKEND", "mpi"}}).find("auto, gloo or nccl"), std::string::npos);
  EXPECT_NE(error_of({{"LOCKSTEP_DEVICE", "gpu0"}}).find("LOCKSTEP_DEVICE"), std::string::npos);
}

TEST(SlurmNodes, first_name) {
  EXPECT_EQ(comm::first_slurm_node("login1"), "login1");
  EXPECT_EQ(comm::first_slurm_node("a,b"), "a");
  EXPECT_EQ(comm::first_slurm_node("gpu[07-10,12],login1"), "gpu07");
  EXPECT_EQ(comm::first_slurm_node("gpu[12]"), "gpu12");
  EXPECT_EQ(comm::first_slurm_node("rack[2-3]node[5-6]"), "rack2node5");
  EXPECT_EQ(comm::first_slurm_node("n[1-2]-ib,x"), "n1-ib");
  EXPECT_EQ(comm::first_slurm_node(""), "");
}

TEST(SlurmNodes, tasks_on_a_node) {
  EXPECT_EQ(comm::slurm_tasks_on("4", 0), 4);
  EXPECT_EQ(comm::slurm_tasks_on("4(x2),3", 1), 4);
  EXPECT_EQ(comm::slurm_tasks_on("4(x2),3", 2), 3);
  EXPECT_EQ(comm::slurm_tasks_on("4(x2),3", 3), -1);
  EXPECT_EQ(comm::slurm_tasks_on("many", 0), -1);
}

}  // namespace
}  // namespace lockstep
