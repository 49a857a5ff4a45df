"""Access control: identities, their roles, and the permissions of a role.

certificate_authority  a certificate authority of one's own
authentication         who asks, by the peer and the token
revocation             ends what a revoked token has begun
audit                  the audit log: who has changed what, and what came of it
identity               an identity, and what it may not do
roles                  the roles, and which methods each of them may call
refusal_pace           how long those wait for a refusal who have had many
route_tickets          the daemon's word who a client is, for the ports of interpreters
namespaces             which operators an identity may register, replace and remove
token                  tokens: their format, and their stored records
users                  other users of the machine, and their roles
token_file             the file of these records: reread when it changes, replaced atomically
"""
