# The image is the program and nothing else: it brings certificates and time zones
# with it (cmd/bridge/roots.go). It is cross-compiled before, to
# <os>/<architecture>/delaybridge in the context, as `make image` and goreleaser do,
# so nothing runs while the image is built and no base image is needed.

# A directory that the user of the image may write to; scratch has no mkdir.
FROM scratch AS directories
WORKDIR /data

FROM scratch
ARG TARGETPLATFORM
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="delaybridge" \
      org.opencontainers.image.description="Delayed jobs for NATS, held in Redis or on the bridge's disk" \
      org.opencontainers.image.url="https://github.com/delaybridge/delaybridge" \
      org.opencontainers.image.source="https://github.com/delaybridge/delaybridge" \
      org.opencontainers.image.documentation="https://github.com/delaybridge/delaybridge/blob/main/docs/install.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=directories --chown=65532:65532 /data /data
COPY --chmod=0755 ${TARGETPLATFORM}/delaybridge /usr/bin/delaybridge
USER 65532:65532
# data_dir is below the working directory unless it is set.
WORKDIR /data
VOLUME /data
ENTRYPOINT ["/usr/bin/delaybridge"]
CMD ["serve"]
