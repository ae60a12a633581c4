// Options of the drivers from the settings of a process. Used when an engine starts, and by `millrace doctor`.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/transport/fabric.hpp>

namespace millrace::runtime {

transport::shm_options shm_options_of(const config::shm_settings& s);
transport::tcp_options tcp_options_of(const config::tcp_settings& s);
transport::verbs_options verbs_options_of(const config::verbs_settings& s);
transport::fabric_options fabric_options_of(const config::settings& s);

} // namespace millrace::runtime
