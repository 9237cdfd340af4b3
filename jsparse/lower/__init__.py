# SPDX-License-Identifier: Apache-2.0
"""From a nest to loop IR: co-iteration (`walk`), values (`loops`), patterns (`assemble`), then
clean-ups (`simplify`).
"""
