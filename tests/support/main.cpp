// The entry point of every Boost.Test program.
#define BOOST_TEST_MODULE millrace
#include <boost/test/unit_test.hpp>
