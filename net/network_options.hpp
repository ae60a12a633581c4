// How the connections of one process behave: the section `channel` of the configuration sets it.
// Used by nodes and clients.
#pragma once

#include <millrace/config/keys.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/resolver.hpp>

namespace millrace::net {

struct network_options {
  io_loop_options loop;
  channel_options channel;
  listener_options listener;
  resolver_options names;
};

} // namespace millrace::net

namespace millrace::config {
template <>
key_table<net::network_options> keys_of();
}
