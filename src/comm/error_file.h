// SPDX-License-Identifier: Apache-2.0
// The note that torchrun's agent looks for when a worker has failed.
#pragma once

#include <string>

namespace lockstep::comm {

/// `{"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": SECONDS}}}`
std::string error_file_text(const std::string& text, long seconds);

/// Writes it to the file that TORCHELASTIC_ERROR_FILE names, if that is set. Failing to is no error.
void write_error_file(const std::string& text);

}  // namespace lockstep::comm
