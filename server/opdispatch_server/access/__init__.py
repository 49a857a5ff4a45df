"""Access control: identities, their roles, and the permissions of a role.

certificate_authority  a certificate authority for tests and small installations
authentication         identify callers by peer and token
revocation             end the streams and calls of a revoked token
audit                  the audit log: each change, its identity and its outcome
identity               an identity, and its permission checks
roles                  the roles, and the methods that each may call
refusal_pace           delay refusals to addresses that have had many
route_tickets          tickets that identify clients at the ports of interpreters
namespaces             the operators that an identity may register, replace and remove
token                  tokens: their format, and their stored records
users                  other users of the machine, and their roles
token_file             the file of token records: reread on change, replaced atomically
"""
