# SPDX-License-Identifier: Apache-2.0
"""Loop IR to text (`cstyle`, `cpp`) and text to a loaded object (`build`)."""
