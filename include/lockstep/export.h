// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what leaves the library; everything else is hidden.
#define LOCKSTEP_API __attribute__((visibility("default")))
