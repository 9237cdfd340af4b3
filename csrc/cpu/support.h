// What generated kernels call but need not contain: compiled once for a compiler and a processor, linked into each.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_CPU_SUPPORT_H_
#define JSPARSE_CPU_SUPPORT_H_

// Defined in support.cc, for int32_t and int64_t where it is a template.  To optimise these again in every kernel took
// a third of the time to compile one.
#define JS_SUPPORT __attribute__((visibility("hidden")))

#endif  // JSPARSE_CPU_SUPPORT_H_
