// The exception barrier that every function of forge_ext.h runs behind.
#pragma once

#include "forge_ext.h"

#include <cstdio>
#include <exception>

inline void forge_say(forge_error * error, const char * message) {
    if (error != nullptr && error->size == sizeof(forge_error)) {
        std::snprintf(error->message, sizeof(error->message), "%s", message);
    }
}

inline forge_status forge_invalid(forge_error * error, const char * message) {
    forge_say(error, message);
    return FORGE_INVALID;
}

// Runs `body`, which returns a forge_status, and turns whatever it throws into FORGE_EXCEPTION.
template <typename Body>
forge_status forge_barrier(forge_error * error, Body && body) noexcept {
    forge_say(error, "");
    try {
        return body();
    } catch (const std::exception & exception) {
        forge_say(error, exception.what());
    } catch (...) {
        forge_say(error, "an exception that is no std::exception");
    }
    return FORGE_EXCEPTION;
}
